"""What was found, in vLLM's words; and where vLLM has none."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.drafters import Setting as DrafterSetting
from outrider.drafters import make_drafter
from outrider.errors import BadOption
from outrider.measure.recorded import Behaviour
from outrider.measure.shapes import Shape
from outrider.target import Target
from outrider.tune.prices import Seconds
from outrider.tune.search import Prediction, Setting
from outrider.tune.vllm import deployment, method_of


def predictions(drafter: str, speeds: dict[tuple[int | None, int], float]) -> list[Prediction]:
    """(length or None, batch) -> tokens per second."""
    found = []
    for (k, batch), speed in speeds.items():
        setting = Setting("none", None, batch) if k is None else Setting(drafter, Shape.chain(k), batch)
        found.append(Prediction(setting, Behaviour(speed, (), 0.0, ()), Seconds(1.0, 0.0, 0.0), 1.0))
    return found


ONE = {(None, 1): 1.0, (2, 1): 1.5, (5, 1): 1.8}


@pytest.mark.parametrize(
    ("drafter", "config"),
    [
        ("lookup", {"method": "ngram", "prompt_lookup_max": 16, "prompt_lookup_min": 1}),
        ("lookup:3", {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}),
        ("suffix", {"method": "custom_class", "model": "outrider.vllm.SuffixProposer"}),
        ("cascade:suffix,lookup", {"method": "custom_class", "model": "outrider.vllm.CascadeProposer"}),
        ("model:./small", {"method": "draft_model", "model": "./small"}),
        ("translated:tli:./s", {"method": "draft_model", "model": "./s", "use_heterogeneous_vocab": True}),
        ("translated:org/s", {"method": "draft_model", "model": "org/s", "use_heterogeneous_vocab": True}),
        ("eagle3:./head", {"method": "eagle3", "model": "./head"}),
        ("medusa:./heads", {"method": "medusa", "model": "./heads"}),
        ("mtp", {"method": "mtp"}),
    ],
)
def test_methods(drafter: str, config: dict[str, Any]) -> None:
    """With the best length of a chain."""
    found = deployment(Setting(drafter, Shape.chain(5), 1), "match", predictions(drafter, ONE))
    assert found.config == config | {"num_speculative_tokens": 5}


def test_what_classes_of_ours_are_told() -> None:
    """Of a drafter what is not their own; and to find the length themselves, where one for all batches is not best."""
    speeds = ONE | {(None, 4): 1.0, (2, 4): 1.3, (5, 4): 1.1}
    suffix = deployment(Setting("suffix:factor=3,global=0", Shape.chain(5), 1), "match", predictions("suffix", ONE))
    assert suffix.config is None, "predictions of another drafter"
    for drafter, shape, known, told in (
        ("suffix", Shape.chain(5), ONE, {}),
        ("suffix:factor=3,global=0", Shape.chain(5), ONE, {"drafter": "suffix:factor=3,global=0"}),
        ("cascade:suffix,lookup:3", Shape.chain(5), ONE, {"drafter": "cascade:suffix,lookup:3"}),
        ("suffix", Shape.chain(5), speeds, {"policy": "goodput"}),
        ("suffix", None, ONE, {"policy": "goodput"}),
    ):
        found = deployment(Setting(drafter, shape, 1), "match", predictions(drafter, known))
        assert found.told == told
        assert found.config is not None and found.config["num_speculative_tokens"] == 5
        assert "num_speculative_tokens_per_batch_size" not in found.config
        assert found.additional == ({"outrider": told} if told else None)
        assert found.arguments[:2] == ["--speculative-config", json.dumps(found.config)]
        assert found.arguments[2:] == (["--additional-config", json.dumps({"outrider": told})] if told else [])


@pytest.mark.parametrize("drafter", ["suffix", "suffix:factor=3", "cascade:suffix,lookup", "cascade:lookup:3,suffix"])
def test_classes_of_ours_take_what_they_are_told(drafter: str) -> None:
    """As vLLM hands it over: the class is there under that name, and drafts with that drafter."""
    method = method_of(drafter)
    assert method.config is not None
    module, _, name = method.config["model"].rpartition(".")
    given = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        model_config=SimpleNamespace(max_model_len=64, tokenizer="none"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        additional_config=method.additional or {},
    )
    proposer = getattr(importlib.import_module(module), name)(given)
    assert proposer.drafter.spec == make_drafter(drafter, DrafterSetting(cast(Target, None), None, lambda _: None)).spec


@pytest.mark.parametrize("drafter", ["suffix:novel=3", "suffix:factor=no", "lookup:no"])
def test_options_that_cannot_be_used(drafter: str) -> None:
    """As when the drafter itself is made."""
    with pytest.raises(BadOption):
        method_of(drafter)


@pytest.mark.parametrize("drafter", ["recycle", "early_exit:8", "cascade:suffix,model:./s", "my.module:Drafter"])
def test_methods_that_vllm_has_not(drafter: str) -> None:
    found = deployment(Setting(drafter, Shape.chain(5), 1), "match", predictions(drafter, ONE))
    assert found.config is None
    assert "no method like" in found.notes[0]


def test_where_there_is_nothing_to_say() -> None:
    assert deployment(Setting("none", None, 1), "match", predictions("lookup", ONE)).config is None
    slow = {(None, 1): 2.0, (2, 1): 1.5}
    assert deployment(Setting("lookup", Shape(2, 4), 1), "match", predictions("lookup", slow)).config is None
    gguf = deployment(Setting("model:x.gguf", Shape.chain(2), 1), "match", predictions("model:x.gguf", ONE))
    assert gguf.config is None and "GGUF" in gguf.notes[0]


def test_lengths_by_batch() -> None:
    """Five tokens alone, two for up to four requests, none beyond."""
    speeds = ONE | {(None, 4): 1.0, (2, 4): 1.3, (5, 4): 1.1, (None, 8): 1.0, (2, 8): 0.9, (5, 8): 0.5}
    found = deployment(Setting("lookup", Shape.chain(2), 4), "match", predictions("lookup", speeds))
    assert found.config is not None
    assert found.config["num_speculative_tokens"] == 5
    assert found.config["num_speculative_tokens_per_batch_size"] == [[1, 1, 5], [2, 4, 2], [5, 8, 0]]


def test_rules_and_shapes() -> None:
    block = deployment(Setting("model:s", Shape.chain(5), 1), "block", predictions("model:s", ONE))
    assert block.config is not None and block.config["rejection_sample_method"] == "block"
    relaxed = deployment(Setting("model:s", Shape.chain(5), 1), "typical", predictions("model:s", ONE))
    assert any("no rule like 'typical'" in note for note in relaxed.notes)
    for shape in (Shape(4, 8), None):
        found = deployment(Setting("model:s", shape, 1), "match", predictions("model:s", ONE))
        assert any("chains of a fixed length" in note for note in found.notes)
