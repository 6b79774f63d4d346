"""Native multi-token prediction: layers read from small checkpoints that are written here, and what they draft.

What a chain ought to be is computed without caches by Transformers' own `MtpLayer`, over the whole text at every step.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import families
import pytest
import torch
import transformers
from comparing import assert_equal, transformers_ids
from loaded import read_model
from safetensors.torch import load_file, save_file
from test_refusals import WORDS, tokenizer

import outrider
from outrider import Sampling, UsageError, checkpoints, features
from outrider.checkpoints import Checkpoint, Manifest
from outrider.drafters.mtp import Mtp
from outrider.drafters.mtp_files import read_depths
from outrider.drafters.mtp_trained import TrainedMtp
from outrider.drafters.trained import identify
from outrider.engine import Engine
from outrider.errors import BadOption, ModelNotFound, UnsupportedModel
from outrider.heads.mtp import MtpHead, MtpShape
from outrider.loading import quiet, snapshot
from outrider.policy import Fixed
from outrider.row import Request
from outrider.verify.match import Match

LAYERS = 2
GLM = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
PROMPTS = families.prompts(9, 1, 30)
Change = Callable[[dict[str, torch.Tensor]], None]


def large(family: str, layers: int) -> Any:
    """A model with so many layers; those beyond the target's become the depths."""
    if family == "deepseek3":
        return families.make("deepseek3", num_hidden_layers=layers)
    common = {**families._COMMON, **GLM, "num_hidden_layers": layers}
    return families.build(transformers.Glm4MoeConfig(**common))


def checkpoint(folder: Path, family: str = "deepseek3", depths: int = 1, change: Change | None = None) -> Any:
    """Write a target with depths behind it in the layout of DeepSeek-V3; the larger model that the layers are from."""
    model = large(family, LAYERS + depths)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(2)
    for number in range(LAYERS, LAYERS + depths):
        start = f"model.layers.{number}."
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{start}{name}.weight"] = torch.rand(32, generator=generator) + 0.5
        tensors[f"{start}eh_proj.weight"] = torch.randn(32, 64, generator=generator) * 0.3
        tensors[f"{start}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{start}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = LAYERS
    config.pop("num_mtp_layers", None)
    config["num_nextn_predict_layers"] = depths
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(WORDS).save_pretrained(folder)
    return model


def load(folder: Path, k: int = 4, drafter: str = "mtp") -> Any:
    """The target of a folder, on Transformers' modules, with its own layers drafting."""
    return outrider.load(str(folder), drafter, policy=f"fixed:{k}", dtype="float32", offline=True, fast=False)


class Reference:
    """Chains as they ought to be: no cache, every depth over the whole text."""

    def __init__(self, folder: Path, drafter: Mtp) -> None:
        modules = pytest.importorskip("transformers.modeling_layers")
        if not hasattr(modules, "MtpLayer"):
            pytest.skip("this Transformers has no MtpLayer to compare with")
        with quiet():
            self.model = read_model(folder)
        tensors = load_file(folder / "model.safetensors")
        config = self.model.config.get_mtp_config()
        config._attn_implementation = "eager"
        norm = type(self.model.model.norm)
        self.depths, self.tables, self.heads = [], [], []
        for place, depth in enumerate(drafter._depths):
            start = f"model.layers.{LAYERS + place}."
            layer = modules.MtpLayer(config, type(self.model.model.layers[-1]), norm, place).eval()
            layer.mtp_block.load_state_dict(depth.block.state_dict())
            for mine, theirs in (("enorm", "enorm"), ("hnorm", "hnorm"), ("post_norm", "shared_head.norm")):
                getattr(layer, mine).weight.data.copy_(tensors[f"{start}{theirs}.weight"])
            layer.eh_proj.weight.data.copy_(tensors[f"{start}eh_proj.weight"])
            self.depths.append(layer)
            self.tables.append(tensors[f"{start}embed_tokens.weight"])
            self.heads.append(tensors[f"{start}shared_head.head.weight"])

    @torch.no_grad()
    def chain(self, text: Sequence[int], length: int) -> list[int]:
        """The greedy draft behind a text."""
        states = self.model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][:, :-1]
        inputs, drafted = states, []  # type: torch.Tensor, list[int]
        for step in range(length):
            place = min(step, len(self.depths) - 1)
            ids = torch.tensor([[*text, *drafted][place + 1 :]])
            # Beyond the last depth it goes on from its own newest state.
            inputs = states if step < len(self.depths) else torch.cat([inputs, states[:, -1:]], 1)
            embedded = torch.nn.functional.embedding(ids, self.tables[place])
            size = ids.shape[1]
            positions = torch.arange(size)[None]
            turns = self.model.model.rotary_emb(embedded, positions)
            mask = torch.full((1, 1, size, size), -torch.inf).triu(1)
            states = self.depths[place](embedded, inputs, turns, mask, positions, None)
            drafted.append(int((states[0, -1] @ self.heads[place].T).argmax()))
        return drafted


@pytest.mark.parametrize("depths", [1, 2, 3])
@pytest.mark.parametrize("family", ["deepseek3", "glm4"])
def test_drafts_are_what_the_layers_say(tmp_path: Path, family: str, depths: int) -> None:
    """Round by round, in a ragged batch, whatever was accepted, and for chains longer than there are depths."""
    checkpoint(tmp_path, family, depths)
    llm = load(tmp_path, k=4)
    reference = Reference(tmp_path, llm.drafter)
    compared = 0
    for output in llm.generate(PROMPTS, max_new_tokens=12):
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            expected = reference.chain(text, round_.drafted)
            assert round_.tree.tokens.tolist() == [text[-1], *expected], (len(text), round_.number)
            compared += round_.drafted
        assert output.rounds[0].drafted == (0 if len(output.prompt_ids) == 1 else 4)
    assert compared > 60


@pytest.mark.parametrize("depths", [1, 3])
def test_bytes_of_a_token(tmp_path: Path, depths: int) -> None:
    """Of the keys of all depths; a server counts on it."""
    checkpoint(tmp_path, "glm4", depths)
    llm = load(tmp_path, k=4)
    engine = llm.engine()
    row = engine.add(Request(tuple(PROMPTS[0]), Sampling(), 0, 4))
    engine.step()
    per_token = sum(seat.cache.nbytes // seat.cache.capacity for seat in row.state.seats)
    assert llm.drafter.token_bytes == per_token > 0


@pytest.mark.parametrize("family", ["deepseek3", "glm4"])
def test_the_layers_are_those_of_the_files(tmp_path: Path, family: str) -> None:
    """Every weight of the decoder layers, however Transformers stores it; copies that are the target's are dropped."""
    model = checkpoint(tmp_path, family, 2)
    drafter = load(tmp_path).drafter
    for depth, layer in zip(drafter._depths, model.model.layers[LAYERS:], strict=True):
        expected, got = layer.state_dict(), depth.block.state_dict()
        assert set(expected) == set(got)
        assert all(torch.equal(expected[name], got[name]) for name in expected)
        assert depth.embedding is depth.head is None
    assert drafter.taps == (LAYERS,)


def bigrams(tensors: dict[str, torch.Tensor]) -> None:
    """Blocks add nothing, so that the next token follows from the last one alone, for target and depths alike."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        if name.endswith("eh_proj.weight"):
            tensor.copy_(torch.cat([torch.eye(32), torch.zeros(32, 32)], 1))
        if name.endswith(("enorm.weight", "hnorm.weight", "shared_head.norm.weight", "model.norm.weight")):
            tensor.fill_(1)


@pytest.mark.parametrize("depths", [1, 2])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_layers_that_know_the_target(tmp_path: Path, k: int, depths: int) -> None:
    """Blocks of every length are accepted to their end, greedily and with the target's own noise."""
    checkpoint(tmp_path, depths=depths, change=bigrams)
    llm = load(tmp_path, k)
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=6)):
        expected = llm.using("none").generate(PROMPTS, sampling=sampling, max_new_tokens=43)
        for one, other in zip(expected, llm.generate(PROMPTS, sampling=sampling, max_new_tokens=43), strict=True):
            assert one.token_ids == other.token_ids
            assert other.stats.acceptance_rate == 1
            assert max(round_.drafted for round_ in other.rounds) == k


@pytest.mark.parametrize("family", ["deepseek3", "glm4"])
def test_same_tokens_as_plain_decoding(tmp_path: Path, family: str) -> None:
    """Greedily Transformers' own, sampled those of the seed; together and alone."""
    checkpoint(tmp_path, family, 1)
    llm = load(tmp_path)
    with quiet():
        model = read_model(tmp_path)
    sampling = Sampling(temperature=0.9, top_k=20, repetition_penalty=1.1, seed=8)
    expected = llm.using("none").generate(PROMPTS, sampling=sampling, max_new_tokens=20)
    sampled = llm.generate(PROMPTS, sampling=sampling, max_new_tokens=20)
    assert [output.token_ids for output in sampled] == [output.token_ids for output in expected]
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, max_new_tokens=20), strict=True):
        assert_equal(model, prompt, transformers_ids(model, prompt, 20), output.token_ids, family)
        assert llm.generate(prompt, max_new_tokens=20).token_ids == output.token_ids


@pytest.mark.parametrize("depths", [1, 2])
def test_a_second_draft_in_the_place_of_the_first(tmp_path: Path, depths: int) -> None:
    """Asking twice gives the same twice, and what follows is as if it had been asked once."""
    checkpoint(tmp_path, depths=depths)
    llm = load(tmp_path, k=3)
    expected = [[round_.tree.tokens.tolist() for round_ in o.rounds] for o in llm.generate(PROMPTS, max_new_tokens=9)]
    engine = Engine(llm.target, llm.drafter, Match(), lambda: Fixed(3))
    rows = [engine.add(Request(tuple(prompt), Sampling(), 0, 9)) for prompt in PROMPTS]
    seen: list[list[list[int]]] = [[] for _ in rows]
    while active := engine.active:
        states = [row.state for row in active]
        budgets = [engine._budget(row) for row in active]
        drafts = llm.drafter.propose(states, budgets, [Sampling()] * len(active), [None] * len(active))
        for (row, round_), draft in zip(engine.step(), drafts, strict=True):
            assert torch.equal(round_.tree.tokens, draft.tree.tokens)
            seen[rows.index(row)].append(round_.tree.tokens.tolist())
    assert seen == expected


def test_rounds_without_being_asked(tmp_path: Path) -> None:
    """In a cascade it drafts now and then; its drafts are still those of the whole text."""
    checkpoint(tmp_path, depths=2)
    llm = load(tmp_path, k=3, drafter="cascade:lookup,mtp")
    reference = Reference(tmp_path, llm.drafter._parts[1])
    own = 0
    for output in llm.generate(families.prompts(24, 30), max_new_tokens=30):
        assert output.token_ids == llm.using("none").generate(output.prompt_ids, max_new_tokens=30).token_ids
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            own += round_.tree.tokens[1:].tolist() == reference.chain(text, round_.drafted)
    assert own > 10


def test_own_embedding_and_head(tmp_path: Path) -> None:
    """Copies that differ from the target's are used."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("embed_tokens", "shared_head.head"):
            tensor = tensors[f"model.layers.{LAYERS}.{name}.weight"]
            tensor.copy_(tensor.roll(1, 0))

    checkpoint(tmp_path, change=change)
    llm = load(tmp_path)
    assert llm.drafter._depths[0].embedding is not None
    reference = Reference(tmp_path, llm.drafter)
    output = llm.generate(PROMPTS[2], max_new_tokens=8)
    for round_ in output.rounds:
        text = [*output.prompt_ids, *output.token_ids][: round_.start]
        assert round_.tree.tokens[1:].tolist() == reference.chain(text, round_.drafted)


def test_layers_are_read_once(tmp_path: Path) -> None:
    """From several files with an index, or from another folder; afterwards the files are not needed."""
    checkpoint(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    parts = [{}, {}]  # type: list[dict[str, torch.Tensor]]
    for place, name in enumerate(sorted(tensors)):
        parts[place % 2][name] = tensors[name]
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    (tmp_path / "parts" / "model.safetensors").unlink()
    where = {}
    for number, part in enumerate(parts):
        save_file(part, tmp_path / "parts" / f"part{number}.safetensors", {"format": "pt"})
        where |= dict.fromkeys(part, f"part{number}.safetensors")
    index = {"metadata": {}, "weight_map": where}
    (tmp_path / "parts" / "model.safetensors.index.json").write_text(json.dumps(index))

    whole, sharded = load(tmp_path / "whole"), load(tmp_path / "parts")
    with quiet():
        model = read_model(tmp_path / "whole")
    elsewhere = outrider.load(model, f"mtp:{tmp_path / 'parts'}", policy="fixed:4", fast=False)
    assert elsewhere.drafter.spec == f"mtp:{tmp_path / 'parts'}"
    shutil.rmtree(tmp_path / "parts")
    shutil.rmtree(tmp_path / "whole")
    outputs = [llm.generate(PROMPTS[2], max_new_tokens=12) for llm in (whole, sharded, elsewhere)]
    trees = [[round_.tree.tokens.tolist() for round_ in output.rounds] for output in outputs]
    assert trees[0] == trees[1] == trees[2]


def drop(name: str) -> Change:
    """Without this tensor of the depth."""
    return lambda tensors: tensors.__delitem__(f"model.layers.{LAYERS}.{name}")


def put(name: str, *shape: int) -> Change:
    """With this tensor of the depth in this shape."""
    return lambda tensors: tensors.update({f"model.layers.{LAYERS}.{name}": torch.zeros(*shape)})


def bare(tensors: dict[str, torch.Tensor]) -> None:
    """Without any depth."""
    for name in [name for name in tensors if f"layers.{LAYERS}." in name]:
        del tensors[name]


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (bare, ModelNotFound, "no model.layers.2.eh_proj.weight"),
        (drop("hnorm.weight"), UnsupportedModel, "lacks hnorm"),
        (drop("shared_head.norm.weight"), UnsupportedModel, "lacks shared_head.norm"),
        (put("enorm.weight", 16), UnsupportedModel, "enorm.*another shape"),
        (put("eh_proj.weight", 32, 32), UnsupportedModel, "eh_proj.*another shape"),
        (drop("input_layernorm.weight"), UnsupportedModel, "lack model.layers.0.input_layernorm.weight"),
        (put("input_layernorm.weight", 8), UnsupportedModel, "another shape"),
        (put("mlp.shared_experts.up_proj.weight_scale_inv", 1), UnsupportedModel, "also hold.*not quantised"),
    ],
)
def test_files_that_do_not_hold_the_layers(tmp_path: Path, change: Change, kind: type[UsageError], says: str) -> None:
    """Reading is strict, and each refusal is one sentence that names what is wrong."""
    checkpoint(tmp_path, change=change)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(UsageError, match=says) as caught:
        read_depths(tmp_path, config, torch.float32, torch.device("cpu"))
    assert type(caught.value) is kind
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_other_refusals(tmp_path: Path) -> None:
    """Another number than promised, broken files, a target without files, a folder without any."""
    checkpoint(tmp_path / "two", depths=2)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "two")
    config.num_nextn_predict_layers = 1
    cpu = torch.device("cpu")
    with pytest.raises(UnsupportedModel, match=r"should hold.*layers 2 to 2, and holds 2, 3"):
        read_depths(tmp_path / "two", config, torch.float32, cpu)
    broken = tmp_path / "two" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:1000])
    with pytest.raises(ModelNotFound, match="cannot be read"):
        read_depths(tmp_path / "two", config, torch.float32, cpu)
    with pytest.raises(BadOption, match="mtp:FOLDER"):
        outrider.load(families.make("llama"), "mtp")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="holds no multi-token-prediction layers"):
        outrider.load(families.make("llama"), f"mtp:{tmp_path / 'empty'}")
    with pytest.raises(ModelNotFound, match="holds no multi-token-prediction layers"):
        outrider.load(families.make("llama"), f"mtp:{tmp_path / 'nowhere'}")


def test_files_of_a_hub_id_are_found_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they lie once they have been fetched."""
    import huggingface_hub.constants

    home = tmp_path / "models--some--model"
    (home / "snapshots" / "abc").mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots" / "abc" / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert snapshot("some/model") == home / "snapshots" / "abc"
    assert snapshot("some/other") is None


def test_the_users_model_stays(tmp_path: Path) -> None:
    """Loading and drafting leave a model that is passed as it was."""
    checkpoint(tmp_path)
    with quiet():
        model = read_model(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = copy.deepcopy(model.config.to_dict())
    outrider.load(model, f"mtp:{tmp_path}", fast=False).generate(PROMPTS, max_new_tokens=6)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.config.to_dict() == config


def trained(folder: Path, model: Any) -> Path:
    """Write a random layer as `outrider train mtp` would."""
    target = outrider.load(model, "none", fast=False).target
    shape = MtpShape(features.block_shape(target), 100)
    torch.manual_seed(3)
    head = MtpHead(shape, features.output(target))
    for tensor in head.trained().values():
        torch.nn.init.normal_(tensor, std=0.4)
    about = {"taps": (3,), "template": None, "draft_vocabulary": 100, "shape": dataclasses.asdict(shape)}
    manifest = Manifest(method="mtp", target=identify(target, "tiny"), **about)
    checkpoints.write(folder, Checkpoint(manifest, head.trained(), torch.arange(100)), "")
    return folder


def test_a_trained_layer_makes_trees_too(tmp_path: Path) -> None:
    """The checkpoint's own do not, and say so once they are found."""
    model = families.make("llama")
    llm = outrider.load(model, f"mtp:{trained(tmp_path / 'trained', model)}", policy="fixed:3,7", fast=False)
    assert isinstance(llm.drafter, TrainedMtp)
    output = llm.generate(PROMPTS[2], max_new_tokens=9)
    assert any(round_.tree.parents.tolist() != list(range(-1, round_.drafted)) for round_ in output.rounds)
    assert output.token_ids == llm.using("none", policy="fixed:1").generate(PROMPTS[2], max_new_tokens=9).token_ids
    checkpoint(tmp_path / "native")
    with pytest.raises(BadOption, match="makes chains"):
        outrider.load(str(tmp_path / "native"), "mtp", policy="fixed:3,7", dtype="float32", offline=True, fast=False)


def test_a_trained_layer_that_does_not_fit(tmp_path: Path) -> None:
    """Another target, another method's folder, another format: told as of trained drafters, not as of checkpoints."""
    model = families.make("llama")
    spec = f"mtp:{trained(tmp_path, model)}"
    with pytest.raises(BadOption, match=r"a stack of layers of 3, and this target .* has 4"):
        outrider.load(families.make("llama", num_hidden_layers=4), spec, fast=False)
    config = tmp_path / "config.json"
    text = config.read_text()
    for old, new, says in (
        ('"format": 1', '"format": 9', "this version reads 1"),
        ('"method": "mtp"', '"method": "eagle"', "write eagle:"),
        ('"embedding, state"', '"state, embedding"', "joined"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        with pytest.raises(UsageError, match=says):
            outrider.load(model, spec, fast=False)
