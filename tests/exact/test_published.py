"""Published layouts load by `--drafter METHOD:FOLDER`, draft what their descriptions say, and change no output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from published import (
    IDS,
    LAYER,
    LLAMA3,
    SIZE,
    WIDTH,
    Forward,
    dflash_tensors,
    eagle3_tensors,
    layer_tensors,
    mtp_tensors,
    random,
    save,
)

import outrider
from outrider.errors import ModelNotFound, UnsupportedModel, UsageError

PROMPTS = families.prompts(9, 2, 20)
FLAT = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(IDS)}
DEPTH = 8  # its usual taps are 2, 4, 5
USUAL = (2, 4, 5)


@pytest.fixture(scope="module")
def model() -> Any:
    """A target deep enough that counting layers otherwise shows."""
    return families.make("llama", num_hidden_layers=DEPTH)


def agrees(model: Any, spec: str, draft: Callable[[Sequence[int], int], list[int]], depth: int = 4) -> Any:
    """That every round's draft is the description's, and the output plain decoding's; what was loaded."""
    llm = outrider.load(model, spec, "match", f"fixed:{depth}", fast=False)
    plain = llm.using("none").generate(PROMPTS, max_new_tokens=10)
    seen = 0
    for output, alone in zip(llm.generate(PROMPTS, max_new_tokens=10), plain, strict=True):
        assert output.token_ids == alone.token_ids
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            assert round_.tree.tokens[1:].tolist() == draft(text, depth)[: round_.drafted]
            seen += round_.drafted
    assert seen > 30
    return llm


def speculators(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same head's config in the speculators format."""
    layer = {name: value for name, value in config.items() if name not in ("architectures", "draft_vocab_size")}
    verifier = {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.get("draft_vocab_size"),
        "norm_before_residual": False,
        "transformer_layer_config": layer,
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [], "verifier": verifier},
        **more,
    }


@pytest.mark.parametrize(
    ("keys", "taps"),
    [
        ({}, USUAL),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}, (1, 3, 6)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True}}, USUAL),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}, USUAL),  # as SGLang counts the usual ones
        (
            {
                "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]},
            },
            (1, 3, 6),
        ),
    ],
    ids=["unnamed", "vllm", "nested usual", "nested sglang", "both"],
)
def test_eagle3_sees_the_layers_that_its_config_means(
    model: Any, tmp_path: Path, keys: dict[str, Any], taps: tuple[int, ...]
) -> None:
    """One key, counted by two engines in two ways."""
    tensors = eagle3_tensors("midlayer.")
    save(tmp_path, FLAT | keys, tensors)
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    llm = agrees(model, f"eagle3:{tmp_path}", lambda text, depth: forward.eagle3(text, depth, taps))
    assert llm.drafter.taps == taps
    assert f"layers {', '.join(map(str, taps))}" in llm.drafter.note


VARIANTS: list[dict[str, Any]] = [
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
]


@pytest.mark.parametrize("variants", VARIANTS, ids=str)
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_eagle3_norms(model: Any, tmp_path: Path, layout: str, variants: dict[str, bool]) -> None:
    """The variants of both layouts."""
    tensors = eagle3_tensors("midlayer." if layout == "eagle3" else "layers.0.")
    if variants.get("norm_before_fc"):
        tensors["input_norm.weight"] = 1 + random(3 * WIDTH)
    if variants.get("fc_norm"):
        tensors |= {f"fc_norm.{place}.weight": 1 + random(WIDTH) for place in range(3)}
    save(tmp_path, FLAT | variants if layout == "eagle3" else speculators(FLAT, **variants), tensors)
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    agrees(model, f"eagle3:{tmp_path}", lambda text, depth: forward.eagle3(text, depth, USUAL, **variants))


def test_eagle3_with_more_of_its_own(model: Any, tmp_path: Path) -> None:
    """Four taps, the target's whole vocabulary, biases, stretched positions, an embedding of its own."""
    tensors = eagle3_tensors("layers.0.", taps=4, ids=torch.arange(100), bias=True)
    tensors["embed_tokens.weight"] = random(100, WIDTH)
    layer = {**LAYER, "rope_scaling": LLAMA3, "attention_bias": True, "num_aux_hidden_states": 4}
    config = speculators(layer, eagle_aux_hidden_state_layer_ids=[7, 1, 3, 4])
    save(tmp_path, config, tensors)
    forward = Forward(model, layer, tensors, tensors["embed_tokens.weight"])
    agrees(model, f"eagle3:{tmp_path}", lambda text, depth: forward.eagle3(text, depth, (7, 1, 3, 4)))


def test_a_copy_of_the_targets_embedding_is_not_kept(model: Any, tmp_path: Path) -> None:
    """Half of a published head is often that."""
    tensors = {**eagle3_tensors("midlayer."), "embed_tokens.weight": model.get_input_embeddings().weight.detach()}
    save(tmp_path, FLAT, tensors)
    llm = outrider.load(model, f"eagle3:{tmp_path}", fast=False)
    assert not hasattr(llm.drafter.head, "embed_tokens")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle"])
def test_eagle(model: Any, tmp_path: Path, name: str, bias: bool) -> None:
    """By the names of its own repository, of vLLM and of SGLang; with a copy of the target's output layer."""
    tensors = {**layer_tensors(WIDTH, "layers.0."), "fc.weight": random(WIDTH, 2 * WIDTH)}
    if bias:
        tensors["fc.bias"] = random(WIDTH)
    copy = {"lm_head.weight": model.lm_head.weight.detach()}
    save(tmp_path, {**LAYER, "architectures": [name], "bias": bias}, {**tensors, **copy})
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    agrees(model, f"eagle:{tmp_path}", forward.eagle)


MEDUSA: dict[str, Any] = {
    "model_type": "medusa",
    "architectures": ["MedusaModel"],
    "hidden_size": WIDTH,
    "vocab_size": 100,
    "num_heads": 3,
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize("layout", ["each", "one", "reduced", "first"])
def test_medusa(model: Any, tmp_path: Path, layout: str) -> None:
    """An output layer for each head or for all, a reduced vocabulary, and the names of its own repository."""
    bias = layout != "each"
    blocks = [[(random(WIDTH, WIDTH), random(WIDTH) if bias else None) for _ in range(2)] for _ in range(3)]
    ids = IDS if layout == "reduced" else torch.arange(100)
    outputs = [random(len(ids), WIDTH) for _ in range(3)]
    config, tensors = {**MEDUSA, "medusa_fc_bias": bias}, {}
    for head, layers in enumerate(blocks):
        for place, (weight, offset) in enumerate(layers):
            name = f"{head}.{place}.linear" if layout == "first" else f"blocks.{head}.layers.{place}"
            tensors[f"{name}.weight"] = weight
            if offset is not None:
                tensors[f"{name}.bias"] = offset
    if layout == "first":
        config = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "org/target"}
        tensors |= {f"{head}.2.weight": output for head, output in enumerate(outputs)}
    elif layout == "each":
        tensors |= {f"lm_heads.{head}.weight": output for head, output in enumerate(outputs)}
    else:
        outputs = outputs[:1] * 3
        tensors["lm_head.weight"] = outputs[0]
        config |= {"original_lm_head": True, "truncated_vocab_size": len(ids)}
    if layout == "reduced":
        tensors["token_map"] = ids
    save(tmp_path, config, tensors)
    forward = Forward(model, LAYER, {}, model.get_input_embeddings().weight.detach())
    agrees(model, f"medusa:{tmp_path}", lambda text, _: forward.medusa(text, blocks, outputs, ids), 3)


def test_eagle3_with_normed_queries_and_keys(model: Any, tmp_path: Path) -> None:
    """The layer of Qwen 3, in the speculators format."""
    tensors = eagle3_tensors("layers.0.")
    tensors |= {f"layers.0.self_attn.{name}_norm.weight": 1 + random(SIZE) for name in "qk"}
    save(tmp_path, speculators({**FLAT, "model_type": "qwen3"}), tensors)
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    agrees(model, f"eagle3:{tmp_path}", lambda text, depth: forward.eagle3(text, depth, USUAL))
    for kind, names, says in (
        ("qwen3", [], "self_attn.*_norm.weight is missing"),
        ("llama", "qk", r"self_attn\.[qk]_norm\.weight has no place"),
    ):
        plain = {name: tensor for name, tensor in tensors.items() if "q_norm" not in name and "k_norm" not in name}
        normed = {name: tensor for name, tensor in tensors.items() if names and name not in plain}
        save(tmp_path, speculators({**FLAT, "model_type": kind}), plain | normed)
        with pytest.raises(ModelNotFound, match=says):
            outrider.load(model, f"eagle3:{tmp_path}", fast=False)


MTP = {**LAYER, "model_type": "qwen2", "architectures": ["MiMoForCausalLM"], "num_hidden_layers": DEPTH}
MTP["num_nextn_predict_layers"] = 1


@pytest.mark.parametrize("layout", ["biases", "zeros", "none", "copies"])
def test_mtp(model: Any, tmp_path: Path, layout: str) -> None:
    """MiMo's layer with the biases of Qwen 2, with none in one of two ways, and beside the target's tables."""
    config, tensors = dict(MTP), mtp_tensors(bias=layout != "none")
    if layout in ("zeros", "none"):
        config["attention_bias"] = False
        for name in tensors:
            if name.endswith(".bias"):
                tensors[name].zero_()
    own = {"model.embed_tokens.weight": model.get_input_embeddings().weight.detach()}
    own["lm_head.weight"] = model.lm_head.weight.detach()
    save(tmp_path, config, tensors | (own if layout == "copies" else {}))
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    llm = agrees(model, f"mtp:{tmp_path}", forward.mtp)
    assert llm.drafter.taps == (DEPTH,) and "last states" in llm.drafter.note


STRANGE_MTP: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "several layers": ({"num_nextn_predict_layers": 2}, {}, "num_nextn_predict_layers is 2; 1 was expected"),
    "another family": ({"model_type": "mimo_v2"}, {}, "model_type is 'mimo_v2'; 'qwen2' or 'mimo'"),
    "an unknown key": ({"partial": 1}, {}, "partial is 1; no such key"),
    "a whole model": ({}, {"model.layers.0.mlp.up_proj.weight": (48, 32)}, "model.layers.0.*model.mtp_layers.0"),
    "another embedding": (
        {},
        {"model.embed_tokens.weight": (100, 32)},
        "model.embed_tokens.weight is not the target's",
    ),
    "another head": ({}, {"lm_head.weight": (100, 32)}, "lm_head.weight is not the target's"),
    "a joint of another width": (
        {},
        {"model.mtp_layers.0.input_proj.weight": (32, 32)},
        r"input_proj.weight has.*\[32, 64\]",
    ),
    "biases that are denied": ({"attention_bias": False}, {}, "attention_bias is false.*q_proj.bias is not zero"),
}


@pytest.mark.parametrize(("keys", "more", "says"), STRANGE_MTP.values(), ids=STRANGE_MTP.keys())
def test_a_strange_mtp_layer_is_named(
    model: Any, tmp_path: Path, keys: dict[str, Any], more: dict[str, tuple[int, ...]], says: str
) -> None:
    """The key or tensor, and what was expected; and every place gets its tensor."""
    extra = {name: random(*shape) for name, shape in more.items()}
    save(tmp_path, MTP | keys, mtp_tensors() | extra)
    with pytest.raises(UnsupportedModel, match=says):
        outrider.load(model, f"mtp:{tmp_path}", fast=False)
    tensors = mtp_tensors()
    del tensors["model.mtp_layers.0.final_layernorm.weight"]
    save(tmp_path, MTP, tensors)
    with pytest.raises(ModelNotFound, match=r"norm\.weight is missing"):
        outrider.load(model, f"mtp:{tmp_path}", fast=False)


DFLASH = {**LAYER, "model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize("layout", ["flat", "speculators", "reduced"])
def test_dflash(model: Any, tmp_path: Path, layout: str) -> None:
    """Layer outputs are counted from 0 in one layout and from 1 in the other."""
    taps, size, mask = (1, 4, 6), 5, 7
    tensors = dflash_tensors(3, 2)
    if layout == "flat":
        inside = {"mask_token_id": mask, "target_layer_ids": [0, 3, 5]}
        config = {**DFLASH, "architectures": ["DFlashDraftModel"], "block_size": size, "dflash_config": inside}
        config["num_target_layers"] = DEPTH
    else:
        config = {
            "architectures": ["DFlashSpeculator"],
            "speculators_model_type": "dflash",
            "block_size": size,
            "mask_token_id": mask,
            "aux_hidden_state_layer_ids": list(taps),
            "sliding_window_non_causal": True,
            "transformer_layer_config": DFLASH,
        }
    if layout == "reduced":
        reach = torch.zeros(100, dtype=torch.bool)
        reach[IDS] = True
        rows = model.lm_head.weight.detach()[IDS]
        tensors |= {"d2t": IDS - torch.arange(len(IDS)), "t2d": reach, "lm_head.weight": rows}
        config["draft_vocab_size"] = len(IDS)
    save(tmp_path, config, tensors)
    forward = Forward(model, LAYER, tensors, model.get_input_embeddings().weight.detach())
    llm = agrees(model, f"dflash:{tmp_path}", lambda text, depth: forward.dflash(text, depth, taps, size, mask, 2))
    assert llm.drafter.taps == taps and "layers 1, 4, 6" in llm.drafter.note


def flat(**keys: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A flat EAGLE-3 checkpoint with other keys; None leaves one out."""
    return {name: value for name, value in (FLAT | keys).items() if value is not None}, eagle3_tensors("midlayer.")


def without(name: str, **instead: torch.Tensor) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The same without a tensor, or with others."""
    config, tensors = flat()
    tensors.pop(name)
    return config, {**tensors, **instead}


NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}
STRANGE: dict[str, tuple[Any, str]] = {
    "architecture": (flat(architectures=["GPTEagle"]), r"architectures is \['GPTEagle'\].*LlamaForCausalLMEagle3"),
    "taps of either count": (flat(**NESTED), r"eagle_config.eagle_aux_hidden_state_layer_ids is \[1, 2, 6\].*vLLM"),
    "taps that are not there": (flat(eagle_aux_hidden_state_layer_ids=[1, 2, 8]), "layers \\[1, 2, 8\\].*0 to 7"),
    "two countings": (
        flat(
            eagle_aux_hidden_state_layer_ids=[1, 2, 6],
            **NESTED | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 7]}},
        ),
        r"eagle_config.eagle_aux_hidden_state_layer_ids is \[3, 4, 7\]; \[0, 1, 5\]",
    ),
    "taps and fc": (flat(eagle_aux_hidden_state_layer_ids=[1, 2]), r"fc.weight has the shape \[32, 96\].*\[32, 64\]"),
    "an unknown key": (flat(residual_scale=2.0), "residual_scale is 2.0; no such key was expected"),
    "an unknown table": (flat(eagle_config={"rotate": True}), "eagle_config.rotate is True; no such key"),
    "an activation": (flat(hidden_act="gelu"), "hidden_act is 'gelu'; 'silu' was expected"),
    "tied": (flat(tie_word_embeddings=True), "tie_word_embeddings is True; false was expected"),
    "two norms": (flat(fc_norm=True, norm_before_fc=True), "fc_norm is true; false, as norm_before_fc"),
    "layers": (flat(num_hidden_layers=2), "num_hidden_layers is 2; 1 was expected"),
    "no eps": (flat(rms_norm_eps=None), "rms_norm_eps is missing; a number was expected"),
    "a text for a number": (flat(num_attention_heads="4"), "num_attention_heads is '4'; a whole number"),
    "no base": (flat(rope_theta=None), "rope_theta is missing"),
    "stretched by length": (flat(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling.*'dynamic'"),
    "vocabulary": (flat(vocab_size=200), "vocab_size is 200; 100 was expected"),
    "no map": (without("d2t"), r"d2t is missing; one of shape \[54\]"),
    "a map of ids": (without("d2t", d2t=IDS), "d2t does not lead to rising target ids; offsets"),
    "maps that differ": (without("t2d", t2d=torch.ones(100, dtype=torch.bool)), "t2d contradicts d2t"),
    "no head": (without("lm_head.weight"), r"lm_head.weight is missing; one of shape \[54, 32\]"),
    "no residual key": (
        (speculators(FLAT, norm_before_residual=None), eagle3_tensors("layers.0.")),
        "norm_before_residual is missing; true or false",
    ),
    "another algorithm": (
        (speculators(FLAT, speculators_model_type="dspark"), eagle3_tensors("layers.0.")),
        "speculators_model_type is 'dspark'",
    ),
}


@pytest.mark.parametrize(("found", "says"), STRANGE.values(), ids=STRANGE.keys())
def test_a_strange_layout_is_named(model: Any, tmp_path: Path, found: Any, says: str) -> None:
    """The key or tensor, and what was expected."""
    save(tmp_path, *found)
    with pytest.raises(UnsupportedModel, match=says):
        outrider.load(model, f"eagle3:{tmp_path}", fast=False)


@pytest.mark.parametrize(
    ("name", "says"),
    [("norm.weight", "norm.weight is missing"), ("midlayer.mlp.up_proj.weight", "up_proj.weight is missing")],
)
def test_every_tensor_has_its_place(model: Any, tmp_path: Path, name: str, says: str) -> None:
    """And every place its tensor."""
    config, tensors = without(name)
    save(tmp_path / "less", config, tensors)
    with pytest.raises(ModelNotFound, match=says):
        outrider.load(model, f"eagle3:{tmp_path / 'less'}", fast=False)
    save(tmp_path / "more", FLAT, {**eagle3_tensors("midlayer."), "extra.weight": random(3)})
    with pytest.raises(ModelNotFound, match=r"extra\.weight has no place"):
        outrider.load(model, f"eagle3:{tmp_path / 'more'}", fast=False)


def test_medusa_counts_have_to_agree(model: Any, tmp_path: Path) -> None:
    """Published configs have said another number than the weights hold."""
    tensors = {f"{head}.0.linear.weight": random(WIDTH, WIDTH) for head in range(3)}
    tensors |= {f"{head}.1.weight": random(100, WIDTH) for head in range(3)}
    save(tmp_path, {"medusa_num_heads": 2, "medusa_num_layers": 1}, tensors)
    with pytest.raises(UnsupportedModel, match="medusa_num_heads is 2; 3, as there are in the weights"):
        outrider.load(model, f"medusa:{tmp_path}", fast=False)


def test_pickles_are_not_read(model: Any, tmp_path: Path) -> None:
    """The message has the command that converts one."""
    (tmp_path / "config.json").write_text(json.dumps(FLAT))
    torch.save(eagle3_tensors("midlayer."), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match=r"pickle.*weights_only=True"):
        outrider.load(model, f"eagle3:{tmp_path}", fast=False)


def test_another_method_is_named(model: Any, tmp_path: Path) -> None:
    """With the spec that would have been right."""
    save(tmp_path, FLAT, eagle3_tensors("midlayer."))
    with pytest.raises(UsageError, match=f"write eagle3:{tmp_path}"):
        outrider.load(model, f"medusa:{tmp_path}", fast=False)
