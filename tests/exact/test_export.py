"""`outrider export` and `outrider import`: there and back bit by bit, and what stands in the way is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import families
import learning
import pytest
import torch
from loaded import read_model, read_tokenizer
from published import IDS, LAYER, eagle3_tensors, random, save
from safetensors.torch import load_file

import outrider as library
from outrider import checkpoints, features
from outrider.checkpoints import Checkpoint, Manifest
from outrider.drafters.medusa import default_ranks
from outrider.drafters.trained import identify
from outrider.heads.dflash import DFlashHead, DFlashShape
from outrider.heads.eagle import EagleHead, EagleShape
from outrider.heads.eagle3 import Eagle3Head, Eagle3Shape
from outrider.heads.medusa import MedusaHead, MedusaShape
from outrider.heads.mtp import MtpHead, MtpShape

OFFLINE = ["--offline", "--json"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target in a folder."""
    return learning.tiny(tmp_path_factory.mktemp("target"))


def trained(folder: Path, target: Path, method: str, **flags: Any) -> Path:
    """A random head as `outrider train` would have written it."""
    llm = library.load(read_model(target), "none", tokenizer=read_tokenizer(target))
    block, taps = features.block_shape(llm.target), features.default_taps(features.depth_of(llm.target))
    shape: Any
    if method == "eagle3":
        shape = Eagle3Shape(block, len(taps), len(IDS), **flags)
        head: Any = Eagle3Head(shape)
    elif method == "eagle":
        shape, taps = EagleShape(block, len(IDS), **flags), (features.depth_of(llm.target),)
        head = EagleHead(shape, features.output(llm.target, IDS))
    elif method == "mtp":
        shape, taps = MtpShape(dataclasses.replace(block, **flags), len(IDS)), (features.depth_of(llm.target),)
        head = MtpHead(shape, features.output(llm.target, IDS))
    elif method == "dflash":
        shape = DFlashShape(block, 2, len(taps), len(IDS), 4, 9, **flags)
        head = DFlashHead(shape, features.output(llm.target, IDS))
    else:
        shape, taps = MedusaShape(block.width, 3, 1, len(IDS), default_ranks(3)), (features.depth_of(llm.target),)
        head = MedusaHead(shape, features.output(llm.target, IDS))
    for parameter in head.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.4)
    manifest = Manifest(
        method=method,
        target=identify(llm.target, str(target)),
        taps=taps,
        template=None,
        draft_vocabulary=len(IDS),
        shape=dataclasses.asdict(shape),
        training={"step": 7, "data": ["made by the tests"]},
    )
    checkpoints.write(folder, Checkpoint(manifest, head.trained(), IDS), checkpoints.card(manifest, {}))
    return folder


CASES = [
    ("eagle3", "speculators", {}, ["--k", "5"]),
    ("eagle3", "speculators", {"fc_norm": False, "norm_output": True}, []),
    ("eagle3", "eagle3", {}, []),
    ("eagle", "eagle", {}, ["--engine", "sglang"]),
    ("eagle", "eagle", {"bias": False}, []),
    ("medusa", "medusa", {}, []),
    ("dflash", "dflash", {"fc_norm": False}, []),
    ("dflash", "speculators", {"fc_norm": False}, ["--k", "3"]),
    ("eagle3", "speculators", {"qk_norm": True}, []),
    ("mtp", "mtp", {}, []),
    ("mtp", "mtp", {"qkv_bias": True}, []),
]


@pytest.mark.parametrize(("method", "layout", "flags", "more"), CASES, ids=lambda value: str(value))
def test_there_and_back(
    outrider: Any, target: Path, tmp_path: Path, method: str, layout: str, flags: dict[str, Any], more: list[str]
) -> None:
    """Every bit of weights and config; and what was exported drafts as before, as it is."""
    first = trained(tmp_path / "first", target, method, **flags)
    there, back = tmp_path / "there", tmp_path / "back"
    code, text, err = outrider("export", str(first), "--format", layout, "--out", str(there), *more, *OFFLINE)
    assert code == 0, err
    assert json.loads(text)["method"] == method
    code, _, err = outrider("import", str(there), "--target", str(target), "--out", str(back), *OFFLINE)
    assert code == 0, err
    assert (first / "config.json").read_text() == (back / "config.json").read_text()
    before, after = (load_file(folder / "model.safetensors") for folder in (first, back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in there.iterdir()) == ["config.json", "model.safetensors", "outrider.json"]
    llm = library.load(str(target), "none", policy="fixed:3", offline=True)
    prompts = families.prompts(9, 20)
    found = [llm.using(f"{method}:{folder}").generate(prompts, max_new_tokens=12) for folder in (first, there)]
    for mine, other, alone in zip(*found, llm.generate(prompts, max_new_tokens=12), strict=True):
        assert mine.token_ids == other.token_ids == alone.token_ids
        assert [one.tree.tokens.tolist() for one in mine.rounds] == [one.tree.tokens.tolist() for one in other.rounds]


def test_vllms_keys(outrider: Any, target: Path, tmp_path: Path) -> None:
    """What vLLM 0.32 looks for in the speculators format, under its names."""
    first = trained(tmp_path / "first", target, "eagle3")
    assert outrider("export", str(first), "--format", "speculators", "--k", "5", "--out", str(tmp_path / "x"))[0] == 0
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2] and config["fc_norm"] is True
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    verifier = {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]}
    assert config["speculators_config"]["verifier"] == verifier
    assert config["transformer_layer_config"]["max_position_embeddings"] == 160
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    assert {"fc_norm.0.weight", "layers.0.hidden_norm.weight", "d2t", "t2d", "lm_head.weight"} <= tensors.keys()


def test_engines_keys_of_mtp(outrider: Any, target: Path, tmp_path: Path) -> None:
    """What SGLang looks for: MiMo's names, biases, and the target's tables, bit by bit."""
    first = trained(tmp_path / "first", target, "mtp")
    code, text, err = outrider("export", str(first), "--format", "mtp", "--out", str(tmp_path / "x"), "--json")
    assert code == 0, err
    assert any("no draft vocabulary" in note for note in json.loads(text)["notes"])
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (config["architectures"], config["num_nextn_predict_layers"]) == (["MiMoForCausalLM"], 1)
    assert (config["model_type"], config["attention_bias"]) == ("qwen2", False)
    model, tensors = read_model(target), load_file(tmp_path / "x" / "model.safetensors")
    assert torch.equal(tensors["model.embed_tokens.weight"].float(), model.get_input_embeddings().weight)
    assert torch.equal(tensors["lm_head.weight"].float(), model.lm_head.weight)
    assert not tensors["model.mtp_layers.0.self_attn.q_proj.bias"].any()
    ours = load_file(first / "model.safetensors")["depth.eh_proj.weight"]
    assert torch.equal(tensors["model.mtp_layers.0.input_proj.weight"], torch.cat(ours.chunk(2, 1)[::-1], 1))


def test_both_engines_count_layers_of_the_flat_layout_right(outrider: Any, target: Path, tmp_path: Path) -> None:
    """vLLM reads the key at the top, SGLang the one below, and adds 1."""
    first = trained(tmp_path / "first", target, "eagle3")
    code, text, _ = outrider("export", str(first), "--format", "eagle3", "--out", str(tmp_path / "x"), "--json")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert code == 0 and "SGLang knows no fc_norm" in json.loads(text)["notes"][0]
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 0, 1]


def test_a_published_drafter_survives_both_ways(outrider: Any, tmp_path: Path) -> None:
    """Imported for a target and exported again: the same tensors, whatever we had never seen of it."""
    target = learning.tiny(tmp_path / "target", num_hidden_layers=8)
    tensors = {**eagle3_tensors("midlayer."), "embed_tokens.weight": random(100, 32)}
    config = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(IDS)}
    save(tmp_path / "published", config, tensors)
    ours, again = tmp_path / "ours", tmp_path / "again"
    where = ["--target", str(target), "--offline"]
    code, text, err = outrider("import", str(tmp_path / "published"), *where, "--out", str(ours))
    assert code == 0, err
    assert f"eagle3:{ours}" in text and "no eagle_aux_hidden_state_layer_ids, so the usual ones of 8" in text
    training = json.loads((ours / "config.json").read_text())["training"]["imported"]
    assert training["layout"] == "eagle3" and "2, 4, 5" in training["concluded"][0]
    assert outrider("export", str(ours), "--format", "eagle3", "--out", str(again), "--offline")[0] == 0
    after = load_file(again / "model.safetensors")
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[name], tensors[name]) for name in tensors)


def test_what_a_config_leaves_open_can_be_said(outrider: Any, tmp_path: Path) -> None:
    """The message names the key, and --set answers it; what was said is kept."""
    target = learning.tiny(tmp_path / "target", num_hidden_layers=8)
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}, "novel": 3}
    config = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(IDS), **nested}
    published = save(tmp_path / "published", config, eagle3_tensors("midlayer."))
    command = ["import", str(published), "--target", str(target), "--offline", "--out", str(tmp_path / "ours")]
    code, _, err = outrider(*command)
    assert code == 2 and "eagle_config.eagle_aux_hidden_state_layer_ids" in err and "--set" in err
    said = ["--set", "eagle_aux_hidden_state_layer_ids=[2,3,7]"]
    code, _, err = outrider(*command, *said)
    assert code == 2 and "novel is 3; no such key was expected" in err
    assert not (tmp_path / "ours").exists()
    assert outrider(*command, *said, "--set", "novel=null")[0] == 0
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["taps"] == [2, 3, 7]


def test_a_changed_export_is_noticed(outrider: Any, target: Path, tmp_path: Path) -> None:
    """outrider.json and the published files have to say the same; and it is for one target."""
    first = trained(tmp_path / "first", target, "eagle3")
    assert outrider("export", str(first), "--format", "speculators", "--out", str(tmp_path / "x"))[0] == 0
    file = tmp_path / "x" / "config.json"
    file.write_text(file.read_text().replace('"norm_output": false', '"norm_output": true'))
    code, _, err = outrider("import", str(tmp_path / "x"), "--target", str(target), "--out", str(tmp_path / "y"))
    assert code == 2 and "norm_output False and the published files say True" in err
    other = learning.tiny(tmp_path / "other", "qwen2")
    file.write_text(file.read_text().replace('"norm_output": true', '"norm_output": false'))
    code, _, err = outrider("import", str(tmp_path / "x"), "--target", str(other), "--out", str(tmp_path / "y"))
    assert code == 2 and "other weights" in err


REFUSED = [
    (["--format", "onnx"], "There is no layout 'onnx'"),
    (["--format", "medusa"], "'eagle3' cannot be written as medusa: choose speculators or eagle3"),
    (["--format", "eagle3", "--k", "3"], "leave --k out"),
    (["--format", "eagle3", "--engine", "vllm"], "one folder serves every engine"),
    (["--format", "eagle", "--engine", "tgi"], "choose vllm or sglang"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_refused(outrider: Any, target: Path, tmp_path: Path, options: list[str], says: str) -> None:
    """In one sentence, and nothing is written."""
    first = trained(tmp_path / "first", target, "eagle3")
    code, out, err = outrider("export", str(first), *options, "--out", str(tmp_path / "x"))
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_heads_without_a_published_layout(outrider: Any, target: Path, tmp_path: Path) -> None:
    """What no engine can compute is refused, with what to train instead."""
    for method, layout, flags, says in (
        ("dflash", "dflash", {}, "fc_norm = false"),
        ("eagle", "eagle", {"cell": "gru"}, "cell like 'gru'"),
        ("eagle3", "eagle3", {"qk_norm": True}, "write --format speculators"),
        ("mtp", "mtp", {"head_size": 16}, "heads of 16"),
    ):
        head = trained(tmp_path / method, target, method, **flags)
        code, _, err = outrider("export", str(head), "--format", layout, "--out", str(tmp_path / "x"))
        assert code == 2 and says in err and not (tmp_path / "x").exists()


def test_folders_that_are_not_what_is_asked_for(outrider: Any, target: Path, tmp_path: Path) -> None:
    """Ours to be imported, published to be exported, and folders that are there."""
    first = trained(tmp_path / "first", target, "eagle3")
    there = tmp_path / "there"
    assert outrider("export", str(first), "--format", "eagle3", "--out", str(there))[0] == 0
    code, _, err = outrider("export", str(first), "--format", "eagle3", "--out", str(there))
    assert code == 2 and "never overwritten" in err
    code, _, err = outrider("export", str(there), "--format", "speculators", "--out", str(tmp_path / "x"))
    assert code == 2 and "outrider import it first" in err
    code, _, err = outrider("import", str(first), "--target", str(target), "--out", str(tmp_path / "x"))
    assert code == 2 and "is used as it is" in err
    code, _, err = outrider("import", str(tmp_path / "none"), "--target", str(target), "--out", str(tmp_path / "x"))
    assert code == 2 and "config.json" in err
    command = ["import", str(there), "--target", str(target), "--out", str(tmp_path / "x"), "--set"]
    assert "changes nothing" in outrider(*command, "model_type=llama")[2]
    assert "write NAME=VALUE" in outrider(*command, "model_type")[2]


def test_a_target_that_scales_its_embeddings(outrider: Any, tmp_path: Path) -> None:
    """Engines would hand the head unscaled ones: EAGLE-3 brings its own table along, and still drafts the same."""
    target = learning.tiny(tmp_path / "target", "gemma3")
    first = trained(tmp_path / "first", target, "eagle3")
    assert outrider("export", str(first), "--format", "speculators", "--out", str(tmp_path / "x"))[0] == 0
    table = load_file(tmp_path / "x" / "model.safetensors")["embed_tokens.weight"]
    model = read_model(target)
    assert torch.equal(table, model.get_input_embeddings()(torch.arange(100)).detach())
    llm = library.load(str(target), f"eagle3:{tmp_path / 'x'}", policy="fixed:3", offline=True)
    assert not hasattr(llm.drafter.head, "embed_tokens")
    eagle = trained(tmp_path / "eagle", target, "eagle")
    code, _, err = outrider("export", str(eagle), "--format", "eagle", "--out", str(tmp_path / "y"))
    assert code == 2 and "scales its embeddings" in err
