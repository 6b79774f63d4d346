"""The decision matrix: what is asked, what is advised and why, memory against real modules, and the page of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from measured import SMALL, SUFFIX, results_of
from torch import nn

from outrider.advise import methods as known
from outrider.advise.matrix import filled
from outrider.advise.measured import argued
from outrider.advise.methods import DRAFT_VOCABULARY, HEADS, METHODS, Scene
from outrider.advise.ranking import Asked, Recommendation, rank
from outrider.advise.rules import RULES
from outrider.advise.shape import Shape
from outrider.advise.situation import Situation, as_size, parse_memory
from outrider.drafters import DRAFTERS
from outrider.errors import BadOption, UnsupportedModel
from outrider.heads.base import TargetOutput
from outrider.heads.blocks import BlockShape
from outrider.heads.dflash import DFlashHead, DFlashShape
from outrider.heads.eagle import EagleHead, EagleShape
from outrider.heads.eagle3 import Eagle3Head, Eagle3Shape
from outrider.heads.medusa import MedusaHead, MedusaShape
from outrider.kv import KVCache
from outrider.measure.results import Case
from outrider.target import TransformersTarget
from outrider.types import Tree

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
ALL = ("generate", "bench", "train", "data", "prove", "advise")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 << 30),
        ("24 GB", 24 << 30),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        ("1000", 1000),
        ("2TiB", 2 << 40),
    ],
)
def test_memory_is_read(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "much", "16 apples", "-1GiB", "0"])
def test_memory_that_is_none(text: str) -> None:
    with pytest.raises(BadOption, match="16GiB"):
        parse_memory(text)


def test_sizes_are_for_people() -> None:
    assert [as_size(size) for size in (16 << 30, 3 << 29, 5 << 20, 2048, 7)] == [
        "16 GiB", "1.5 GiB", "5 MiB", "2 KiB", "7 bytes",
    ]  # fmt: skip


def config_of(**options: Any) -> Any:
    """A small Llama's configuration."""
    settings = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, **options,
    }  # fmt: skip
    return transformers.LlamaConfig(**settings)


@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_is_that_of_the_real_model(tied: bool) -> None:
    """Parameters, weights, and what a token leaves in the cache, counted on a model that exists."""
    config = config_of(tie_word_embeddings=tied)
    shape = Shape.of(config, torch.float32)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert shape.parameters == model.num_parameters()
    assert shape.weights == 4 * model.num_parameters()
    assert shape.layer == sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert shape.embedding == 300 * 64 * (1 if tied else 2)
    assert (shape.width, shape.layers, shape.vocabulary, shape.context, shape.mtp_layers) == (64, 3, 300, 128, 0)
    target = TransformersTarget(model)
    cache: KVCache = target.new_cache(1, 1)
    target.forward([Tree.chain([1])], cache)
    assert shape.cache(cache.capacity) == cache.nbytes


def test_a_shape_in_other_precisions() -> None:
    whole, half = Shape.of(config_of(), torch.float32), Shape.of(config_of(), torch.bfloat16)
    rounded = Shape.of(config_of(), torch.bfloat16, int8=True)
    assert half.weights * 2 == whole.weights
    assert rounded.weights == half.parameters - half.embedding + 2 * half.embedding
    assert rounded.cache(10) == half.cache(10)


def test_multi_token_prediction_layers_are_seen() -> None:
    config = config_of()
    config.num_nextn_predict_layers = 1
    assert Shape.of(config, torch.float32).mtp_layers == 1


@pytest.mark.parametrize("config", [transformers.T5Config(), transformers.ViTConfig()])
def test_what_is_no_language_model_is_refused(config: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"leave --target out|another target"):
        Shape.of(config, torch.float32)


def own(head: nn.Module) -> int:
    """Bytes of a head's own weights."""
    return sum(tensor.numel() * 4 for tensor in head.trained().values())  # type: ignore[operator]


def test_memory_of_heads_is_that_of_the_real_ones() -> None:
    """Within two per cent of modules that exist; all but EAGLE-3 hold a copy of the rows that they can draft."""
    config = config_of(vocab_size=10_000, hidden_size=256, intermediate_size=512, num_key_value_heads=1)
    scene = Scene(Shape.of(config, torch.float32), None, tokens=0)
    block = BlockShape(width=256, heads=4, kv_heads=1, head_size=64, intermediate=512)
    rows = TargetOutput(torch.zeros(DRAFT_VOCABULARY, 256))
    copied = DRAFT_VOCABULARY * 256 * 4
    expected = {
        "medusa": own(MedusaHead(MedusaShape(256, HEADS, 1, DRAFT_VOCABULARY), rows)) + copied,
        "eagle": own(EagleHead(EagleShape(block, DRAFT_VOCABULARY), rows)) + copied,
        "eagle3": own(Eagle3Head(Eagle3Shape(block, 3, DRAFT_VOCABULARY))),
        "dflash": own(DFlashHead(DFlashShape(block, 3, 5, DRAFT_VOCABULARY, 8, 0), rows)) + copied,
    }
    for method in METHODS:
        if method.name in expected:
            assert method.memory(scene) == pytest.approx(expected[method.name], rel=0.02), method.name


def test_memory_of_the_others() -> None:
    target, draft = Shape.of(config_of(), torch.float32), Shape.of(config_of(num_hidden_layers=1), torch.float32)
    memory = {method.name: method.memory for method in METHODS}
    assert {name for name, of in memory.items() if of(Scene(target, draft, 100)) == 0} == {
        "suffix", "lookup", "reference", "recycle", "lookahead", "early_exit",
    }  # fmt: skip
    for name in ("model", "translated", "cascade"):
        assert memory[name](Scene(target, draft, 100)) == draft.weights + draft.cache(100)
        assert memory[name](Scene(target, None, 100)) == pytest.approx((target.weights + target.cache(100)) / 10)
    assert memory["mtp"](Scene(replace(target, mtp_layers=2), None, 0)) == 2 * (2 * 64 * 64 + target.layer) * 4
    assert memory["dflash"](Scene(target, None, 10)) > memory["eagle3"](Scene(target, None, 10))


def advised(scene: Scene | None = None, commands: tuple[str, ...] = ALL, **answers: Any) -> list[Recommendation]:
    """What is advised, in order."""
    situation = Situation(**answers)
    return rank(situation, scene, Asked("T", None, situation.batch, commands))


def names(told: list[Recommendation], *, out: bool = False) -> list[str]:
    """The methods that are not ruled out, or those that are."""
    return [one.method.name for one in told if (one.ruled_out is not None) == out]


SITUATIONS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    # answers, what comes first (in this order), what is ruled out
    "edits on a CPU": (
        {"hardware": "cpu", "text_in_prompt": True, "can_train": False, "small_model": False},
        ("suffix", "lookup"),
        ("model", "eagle3", "medusa", "eagle"),
    ),
    "chat, a small model at hand": (
        {"hardware": "gpu", "text_in_prompt": False, "can_train": False, "small_model": True},
        ("model", "cascade"),
        ("eagle3", "reference"),
    ),
    "chat, nothing at hand": (
        {"text_in_prompt": False, "can_train": False, "small_model": False},
        ("translated", "suffix"),
        ("model", "eagle", "medusa"),
    ),
    "latency on a GPU, training possible": (
        {"hardware": "gpu", "goal": "latency", "can_train": True, "text_in_prompt": False, "small_model": True},
        ("eagle3", "dflash"),
        ("reference",),
    ),
    "throughput of large batches": (
        {"goal": "throughput", "batch": 32, "can_train": False, "small_model": True},
        ("suffix", "lookup"),
        ("eagle3",),
    ),
    "a checkpoint with MTP layers": (
        {"has_mtp": True, "text_in_prompt": False, "can_train": False, "small_model": False},
        ("mtp",),
        ("model",),
    ),
    "a checkpoint without": ({"has_mtp": False}, (), ("mtp",)),
    "summaries, both ways": (
        {"text_in_prompt": True, "small_model": True, "can_train": False},
        ("suffix", "cascade"),
        (),
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation(name: str) -> None:
    answers, first, out = SITUATIONS[name]
    told = advised(**answers)
    assert tuple(names(told)[: len(first)]) == first
    assert set(out) <= set(names(told, out=True))
    for one in told:
        if one.ruled_out is None and one.points != one.method.worth:
            assert one.speaks_for or one.speaks_against, "points have reasons"


def test_points_are_worth_and_rules() -> None:
    answers = {"text_in_prompt": True, "hardware": "cpu"}
    told = {one.method.name: one for one in advised(**answers)}
    assert told["suffix"].points == 1 + 3 + 1
    assert len(told["suffix"].speaks_for) == 2
    assert told["model"].points == 1 - 1
    assert told["mtp"].points == 2 - 3


def test_what_does_not_fit_is_ruled_out() -> None:
    target = Shape.of(config_of(), torch.float32)
    draft = Shape.of(config_of(num_hidden_layers=2), torch.float32)
    scene = Scene(target, draft, 64)
    alone = target.weights + target.cache(64)
    told = {one.method.name: one for one in advised(scene, memory=alone + 1000, small_model=True)}
    assert told["suffix"].ruled_out is None
    assert told["suffix"].total == alone
    assert "there are" in str(told["model"].ruled_out)
    assert told["model"].memory == draft.weights + draft.cache(64)
    roomy = {one.method.name: one for one in advised(scene, memory=10 * alone, small_model=True)}
    tight = {
        one.method.name: one for one in advised(scene, memory=int((alone + draft.weights) * 1.05), small_model=True)
    }
    assert roomy["model"].points == tight["model"].points + 1
    assert "longer contexts" in tight["model"].speaks_against[-1]


def test_only_what_exists_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method appears with its drafter, and one that only training makes with its recipe."""
    assert "dflash" in {one.method.name for one in advised(can_train=True)}
    monkeypatch.delitem(DRAFTERS, "eagle3")
    assert "eagle3" not in {one.method.name for one in advised(can_train=True)}
    from outrider.train import methods as recipes

    told = {one.method.name: one for one in advised(can_train=True)}
    assert any("outrider train draft" in command for command in told["distilled"].commands)
    assert "model:runs/draft" in told["distilled"].commands[-1]
    assert "distilled" not in {one.method.name for one in advised(commands=("generate",), can_train=True)}
    monkeypatch.delitem(recipes.METHODS, "draft")
    assert "distilled" not in {one.method.name for one in advised(can_train=True)}


def test_commands_are_those_that_exist() -> None:
    told = {one.method.name: one for one in advised(commands=("generate",), batch=4)}
    assert told["suffix"].commands == (
        "outrider generate --target T --drafter suffix --prompts questions.jsonl --batch 4",
    )
    assert all(command.startswith("outrider generate") for command in told["eagle3"].commands)
    told = {one.method.name: one for one in advised()}
    assert [command.split()[1] for command in told["eagle3"].commands] == ["data", "train", "bench"]
    assert "eagle3:runs/eagle3" in told["eagle3"].commands[-1]


def test_every_drafter_is_a_method_and_every_rule_speaks_of_methods() -> None:
    """Whoever adds a drafter says here when to take it."""
    named = {method.name for method in METHODS}
    assert set(DRAFTERS) - {"none"} <= {method.drafter for method in METHODS}
    assert {name for rule in RULES for name in rule.methods} == named
    assert len(named) == len(METHODS)


def test_the_page_is_made_from_the_rules() -> None:
    """If this fails: python docs/matrix.py."""
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page
    assert page.count("| `") > 2 * len(METHODS)
    for rule in RULES:
        assert rule.why in page
    for size in (known.TENTH, DRAFT_VOCABULARY):
        assert size in (10, 8192), "the page says so"


def run_of(*cases: tuple[Case, Any]) -> Any:
    """Results of cases and of plain decoding beside each."""
    plain = {case.plain: (case.plain, SUFFIX) for case, _ in cases}
    return results_of([*plain.values(), *cases])[0]


def test_what_was_measured_comes_first() -> None:
    slow = replace(SMALL, draft_seconds=0.2)
    results = run_of(
        (Case(drafter="suffix", k=2, policy="fixed:2"), SUFFIX),
        (Case(drafter="suffix", k=5, policy="fixed:5"), SUFFIX),
        (Case(drafter="model:small", k=3, policy="fixed:3"), slow),
        (Case(drafter="lookup", batch=4), SUFFIX),
    )
    situation = Situation(text_in_prompt=False, small_model=True, can_train=False)
    asked = Asked("T", None, 1, ALL)
    by_rules = rank(situation, None, asked)
    assert names(by_rules)[0] == "model"
    told = argued(by_rules, results, situation, asked)
    first, last = told[0], [one for one in told if one.ruled_out is None][-1]
    assert (first.method.name, last.method.name) == ("suffix", "model")
    assert first.measured is not None and last.measured is not None
    best = max(s.speedup for s in results.summaries if results.cases[s.case].drafter == "suffix")
    assert first.measured.speed == best > 1
    assert first.measured.low is not None
    assert (first.measured.verdict, last.measured.verdict) == ("faster", "slower")
    assert next(one for one in told if one.method.name == "lookup").measured is None, "in a batch of four"
    assert first.commands[0].startswith("outrider prove --target T --drafter suffix --verifier match --policy fixed:")


def test_measured_heads_are_there_even_if_nothing_can_be_trained() -> None:
    results = run_of((Case(drafter="eagle3:runs/e", k=3, policy="fixed:3"), SMALL))
    situation, asked = Situation(can_train=False), Asked("T", None, 1, ALL)
    told = argued(rank(situation, None, asked), results, situation, asked)
    assert told[0].method.name == "eagle3"
    assert told[0].spec == "eagle3:runs/e"
    assert told[0].ruled_out is None


def test_measurements_of_other_situations_do_not_count() -> None:
    typical = Case(drafter="model:small", verifier="typical", k=3, policy="fixed:3")
    results = run_of((typical, SMALL), (Case(drafter="suffix", temperature=1.0), SUFFIX))
    asked = Asked("T", None, 1, ALL)

    def first(**answers: Any) -> str:
        situation = Situation(**answers)
        return argued(rank(situation, None, asked), results, situation, asked)[0].spec

    assert first(temperature=1.0) == "suffix"
    assert first(temperature=0.0) == "model:small"
    with pytest.raises(BadOption, match="a lossless verifier"):
        first(temperature=0.0, must_be_exact=True)
    with pytest.raises(BadOption, match="batch 4"):
        first(batch=4)


def test_throughput_is_measured_as_throughput() -> None:
    results = run_of((Case(drafter="suffix", batch=4, k=2, policy="fixed:2"), SUFFIX))
    situation, asked = Situation(batch=4, goal="throughput"), Asked("T", None, 4, ALL)
    told = argued(rank(situation, None, asked), results, situation, asked)
    measured = next(one.measured for one in told if one.measured is not None)
    plain, fast = results.summaries
    assert measured.speed == pytest.approx(fast.throughput / plain.throughput)
    assert measured.low is None
