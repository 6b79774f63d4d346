"""Training an exit, a draft model, and targets that change: what is learnt from is what is met, and it shows."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import families
import learning
import pytest
import torch
from loaded import read_model
from test_training import WHOLE, asked, batch_of

import outrider
from outrider import Sampling, features
from outrider.commands.train import run
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import BadOption, UnsupportedModel
from outrider.noise import SeededNoise
from outrider.policy import Fixed
from outrider.row import Request
from outrider.train import draft as drafting
from outrider.train import exit as exiting
from outrider.train import layerskip, medusa2
from outrider.train.corpus import OnlineFeatures
from outrider.train.loop import Trainer
from outrider.train.methods import METHODS, make_recipe
from outrider.train.recipe import Material, Recipe
from outrider.types import Budget
from outrider.verify.match import Match

EVERY = sorted(WHOLE)
CHANGING = sorted(name for name in EVERY if METHODS[name].changes)
MODULES: dict[str, Any] = {"exit": exiting, "draft": drafting, "medusa2": medusa2, "layerskip": layerskip}
OWN: dict[str, dict[str, Any]] = {
    "exit": {"exit_layer": 2, "rank": 8},
    "draft": {"layers": 2},
    "medusa2": {"lora_rank": 4, "heads_first": 0.0},
    "layerskip": {"exit_layer": 2, "dropout": 0.0},
}


def made(method: str, model: Any, **options: Any) -> tuple[Any, Recipe]:
    """A tiny target in the loop, and a method at work on it; what it trains is random."""
    llm = outrider.load(model, "none", fast=False)
    torch.manual_seed(4)
    ids = torch.arange(60) + 40 if METHODS[method].reduces else torch.arange(100)
    material = Material(
        llm.target,
        ids,
        METHODS[method].steps,
        {**OWN[method], **options},
        0,
        lambda: copy.deepcopy(model),
        lambda target: Engine(target, NoDrafter(), Match(), lambda: Fixed(1)),
    )
    recipe = make_recipe(method, material)
    for parameter in recipe.head.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return llm, recipe


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("method", EVERY)
def test_training_sees_what_drafting_sees(method: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law over a text in training is the law of the drafter in the loop, at every place of the text."""
    llm, recipe = made(method, families.make(family))
    seen: list[torch.Tensor] = []
    loss = MODULES[method].soft_loss

    def spy(logits: torch.Tensor, *rest: Any) -> Any:
        seen.append(logits.detach().softmax(-1))
        return loss(logits, *rest)

    monkeypatch.setattr(MODULES[method], "soft_loss", spy)
    batch = batch_of(llm, recipe, 12, 16)
    recipe.losses(batch)
    monkeypatch.undo()
    laws = {"layerskip": seen[1:2], "medusa2": seen[1:]}.get(method, seen)  # those of drafters
    before = 1 if method == "medusa2" else 0  # Medusa's heads look past the next token
    ids = torch.arange(60) + 40 if METHODS[method].reduces else torch.arange(100)
    target = recipe.served(llm.target)
    engine = Engine(target, recipe.drafter(target), Match(), lambda: Fixed(len(laws)))
    for step, found in enumerate(laws):
        places = [
            (row, slot)
            for row, length in enumerate((12, 16))
            for slot in range(length)
            if 3 <= slot + 1 + before + step < length
        ]
        assert len(places) == len(found)
        for law, (row, slot) in list(zip(found, places, strict=True))[::3]:
            prompt = tuple(batch.ids[row, : slot + 1 + before].tolist())
            active = engine.add(Request(prompt, Sampling(temperature=1.0), 0, 9))
            noise = SeededNoise.for_draft(0, 0, True)
            (drafted,) = engine.drafter.propose(
                [active.state], [Budget(len(laws), law=True)], [active.request.sampling], [noise]
            )
            assert drafted.probs is not None
            assert torch.allclose(drafted.probs[step, ids].float(), law, atol=1e-4), (step, row, slot)
            engine.remove(active)


@pytest.mark.parametrize("method", EVERY)
def test_later_tokens_do_not_reach_back(method: str) -> None:
    """Another token at place 10 leaves the losses of what is predicted before it as they were."""
    llm, recipe = made(method, families.make("llama"))
    one = batch_of(llm, recipe, 16)
    ids = one.ids.clone()
    ids[0, 10] = 7 if int(ids[0, 10]) != 7 else 8
    changed, last = OnlineFeatures(llm.target, recipe.taps)(ids[0].tolist())
    other = dataclasses.replace(one, ids=ids, features=changed[None], last=last[None])
    before, after = recipe.losses(one), recipe.losses(other)
    for step in range(len(before.each)):
        first = 10 - (step if method == "medusa2" else 0)  # the slot whose law is compared with that at place 10
        assert torch.allclose(before.each[step, :, :first], after.each[step, :, :first], atol=1e-5)
        assert not torch.allclose(before.each[step], after.each[step], atol=1e-3)


@pytest.mark.parametrize("method", EVERY)
def test_padding_changes_nothing(method: str) -> None:
    """A text costs in company what it costs alone."""
    llm, recipe = made(method, families.make("llama"))
    both = recipe.losses(batch_of(llm, recipe, 9, 16))
    alone = recipe.losses(batch_of(llm, recipe, 9))
    assert torch.allclose(both.each[:, 0, :9], alone.each[:, 0], atol=1e-4)
    assert not bool(both.each[:, 0, 9:].any())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A saved tiny target, and a folder of its answers; what is measured is learnt from, too."""
    folder = tmp_path_factory.mktemp("tiny")
    learning.answered(folder, 4, 20)
    every = learning.lines(folder / "data")
    known = [{**line, "number": 100 + line["number"], "held_out": False} for line in every]
    file = folder / "data" / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*every, *known]))
    return folder / "target", folder / "data"


def wish(method: str, tiny: tuple[Path, Path], out: Path, **given: Any) -> tuple[Any, Any]:
    """As `test_training.asked`, for these methods."""
    usual = {"draft_vocab": 100 if METHODS[method].reduces else None, "batch_tokens": 512, **OWN[method]}
    return asked(method, tiny, out, **{**usual, **given})


LEARNS: dict[str, dict[str, Any]] = {
    "exit": {"steps": 60, "lr": 1e-2, "rank": 64},
    "draft": {"steps": 50, "lr": 5e-3, "on_policy": 0.1, "drawn": 4},
    "medusa2": {"steps": 60, "lr": 1e-2, "layers": 2, "heads_first": 0.3},
    "layerskip": {"steps": 60, "lr": 3e-3},
}


@pytest.mark.parametrize("method", EVERY)
def test_overfitting_is_accepted(method: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """What knows the answers by heart drafts them; a target that was changed on them still writes them, nearly."""
    kept = {"features": "stored", "features_dtype": "float32"}  # as online, and faster
    given = {**LEARNS[method], **kept, "evaluate_every": 100, "measured_tokens": 20}
    document = run(*wish(method, tiny, tmp_path / "out", **given), dry=False, show=False)
    assert document["acceptance_length"] > 3.6, document["curve"]


@pytest.mark.parametrize("method", EVERY)
def test_an_interrupted_run_equals_another(
    method: str, tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: weights, optimiser and figures."""
    own = {"on_policy": 0.5} if method == "draft" else {}
    own |= {"dropout": 0.5} if method == "layerskip" else {}
    given = {"steps": 5, "checkpoint_every": 2, "evaluate_every": 3, "accumulate": 2, "batch_tokens": 64, **own}
    expected = run(*wish(method, tiny, tmp_path / "whole", **given), dry=False, show=False)
    step = Trainer._step

    def breaks(self: Trainer, number: int) -> Any:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", breaks)
        with pytest.raises(KeyboardInterrupt):
            run(*wish(method, tiny, tmp_path / "broken", **given), dry=False, show=False)
    again = run(*wish(method, tiny, tmp_path / "broken", **given), dry=False, show=False)
    assert again["curve"] == expected["curve"]
    for part in ("state.safetensors", "state.json"):
        ours, theirs = ((tmp_path / f"{name}.training" / part).read_bytes() for name in ("whole", "broken"))
        assert ours == theirs, part
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "broken/model.safetensors").read_bytes()


@pytest.mark.parametrize("method", EVERY)
def test_what_is_saved_changes_no_token(method: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Loaded as the run says: greedily and with a seed, alone and in a batch, the tokens of plain decoding."""
    document = run(*wish(method, tiny, tmp_path / "out", steps=3), dry=False, show=False)
    use = document["use"]
    assert document["lossless_with_respect_to"] == use["target"]
    assert (use["target"] == str(tiny[0])) == (method not in CHANGING)
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("Losslessness is with respect to the new target" in card) == (method in CHANGING)
    assert ("The target's output does not change" in card) == (method not in CHANGING)
    for fast in (False, True):
        llm = outrider.load(use["target"], use["drafter"], policy="fixed:4", dtype="float32", offline=True, fast=fast)
        assert ("not those of the model that it was made from" in llm.configuration.get("note", "")) == (
            method in CHANGING
        )
        plain, prompts = llm.using("none", policy="fixed:1"), families.prompts(9, 1, 20, 2)
        for temperature in (0.0, 0.8):
            sampling = Sampling(temperature=temperature, seed=3)
            drafted = llm.generate(prompts, sampling=sampling, max_new_tokens=12)
            expected = [plain.generate(prompt, sampling=sampling, max_new_tokens=12).token_ids for prompt in prompts]
            assert [output.token_ids for output in drafted] == expected
            assert sum(output.stats.drafted for output in drafted) > 40


def test_heads_know_the_target_that_was_changed_with_them(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """The old target has the same embeddings, and is refused all the same; so are its heads by the new target."""
    run(*wish("medusa2", tiny, tmp_path / "two", steps=3), dry=False, show=False)
    with pytest.raises(BadOption, match="has other weights"):
        outrider.load(str(tiny[0]), f"medusa:{tmp_path / 'two'}", dtype="float32", offline=True)
    run(*wish("exit", tiny, tmp_path / "exit", steps=3), dry=False, show=False)
    with pytest.raises(BadOption, match="has other weights"):
        outrider.load(str(tmp_path / "two" / "target"), f"early_exit:{tmp_path / 'exit'}", dtype="float32")
    old, new = read_model(tiny[0]), read_model(tmp_path / "two" / "target")
    assert torch.equal(old.get_input_embeddings().weight, new.get_input_embeddings().weight)
    assert not torch.equal(old.model.layers[1].mlp.up_proj.weight, new.model.layers[1].mlp.up_proj.weight)
    assert getattr(new.config, features.MARK).startswith("medusa2 ")
    told = json.loads((tmp_path / "two" / "config.json").read_text())["training"]
    assert "nats per token" in told["divergence_from_the_old_target"]


def test_an_unchanged_target_is_not_far_from_itself() -> None:
    """The figure that cards give of changed targets is 0 where nothing has changed, and grows."""
    model = families.make("llama")
    llm, recipe = made("medusa2", model)
    batch = batch_of(llm, recipe, 16)
    with torch.no_grad():
        for name, parameter in recipe.head.whole.named_parameters():
            if name.endswith("up"):
                parameter.zero_()
        recipe.settle([batch])
        same = recipe.facts()
        for name, parameter in recipe.head.whole.named_parameters():
            if name.endswith("up"):
                parameter.normal_(std=0.3)
        recipe.settle([batch])
    assert float(same["divergence_from_the_old_target"].split()[0]) == pytest.approx(0, abs=1e-5)
    assert same["same_likeliest_token_as_the_old_target"] == "100.0%"
    assert float(recipe.facts()["divergence_from_the_old_target"].split()[0]) > 0.01


def test_heads_come_first() -> None:
    """At the beginning of Medusa-2 the target gets no gradient, later it does; of LayerSkip all layers do."""
    llm, recipe = made("medusa2", families.make("llama"), heads_first=0.5)
    batch = batch_of(llm, recipe, 16)
    for done, moves in ((0.4, False), (0.6, True)):
        recipe.zero_grad()
        recipe.losses(dataclasses.replace(batch, done=done)).mean.backward()
        grads = [parameter.grad for parameter in recipe.whole.parameters() if parameter.requires_grad]
        assert all(grad is not None for grad in grads), "several processes need one of each"
        assert any(bool(grad.any()) for grad in grads) == moves
    llm, recipe = made("layerskip", families.make("llama"), dropout=0.99)
    recipe.losses(batch_of(llm, recipe, 16)).mean.backward()
    assert all(parameter.grad is not None for parameter in recipe.parameters() if parameter.requires_grad)


def test_layers_are_left_out() -> None:
    """The last layer is, now and then, which changes its loss; the exit's own layers never."""
    llm, recipe = made("layerskip", families.make("llama"), dropout=0.5)
    batch = batch_of(llm, recipe, 16)
    found = [recipe.losses(dataclasses.replace(batch, seed=seed)).each.detach() for seed in range(12)]
    assert len({float(each[0].sum()) for each in found}) == 2
    assert len({float(each[1].sum()) for each in found}) == 1
    assert len({float(each[2].sum()) for each in found}) >= 2


@pytest.mark.parametrize("family", ["gpt2", "llama tied", "gemma3", "qwen2"])
def test_a_draft_model_is_some_of_the_layers(family: str) -> None:
    """With layers that add nothing left out, the rest is the target itself; families differ in their names."""
    model = families.make(family)
    small = drafting.shortened(model, [0, 2])
    assert small.config.num_hidden_layers == 2
    stack = drafting.layers_name(model)
    big = copy.deepcopy(model)
    layer = big.get_submodule(stack)[1]
    layer.register_forward_hook(
        lambda module, inputs, output: (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]
    )
    ids = torch.tensor(families.prompts(12))
    if family != "gemma3":  # its second layer is another kind than the third
        assert torch.allclose(small(ids).logits, big(ids).logits, atol=1e-5)
    with torch.no_grad():
        small.get_submodule(drafting.layers_name(small))[0].requires_grad_(False)
        next(small.parameters()).zero_()
    assert bool(next(model.parameters()).any()), "the target's weights are its own"


def test_on_policy_texts_are_the_small_models_own() -> None:
    """They begin as the answers do, and go on as the small model writes; the target's law at them is what is learnt."""
    llm, recipe = made("draft", families.make("llama"), on_policy=0.5, drawn=4)
    batch = batch_of(llm, recipe, 12, 16)
    own = recipe._gone_on(dataclasses.replace(batch, done=0.6, seed=3))
    assert own.tokens == 8
    for row, length in enumerate((12, 16)):
        start = int(own.answer[row].nonzero()[0])
        assert 3 <= start <= length - 4 and torch.equal(own.ids[row, :start], batch.ids[row, :start])
        text = own.ids[row, : start + 4].tolist()
        assert torch.allclose(own.last[row, : start + 4], OnlineFeatures(llm.target, (3,))(text)[1], atol=1e-4)
    again = recipe._gone_on(dataclasses.replace(batch, done=0.6, seed=3))
    other = recipe._gone_on(dataclasses.replace(batch, done=0.6, seed=4))
    assert torch.equal(own.ids, again.ids) and not torch.equal(own.ids, other.ids)
    assert not torch.equal(recipe.losses(batch).each, recipe.losses(dataclasses.replace(batch, done=0.6)).each)


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("draft", {"layers": 3}, "has from 1 to 2"),
        ("draft", {"on_policy": 2.0}, "a share from 0 to 1"),
        ("draft", {"draft_vocab": 50}, "draft_vocab means nothing to training draft"),
        ("exit", {"steps_ahead": 2}, "steps_ahead means nothing to training exit"),
        ("exit", {"exit_layer": 3}, "give one from 1 to 2"),
        ("medusa2", {"lora_rank": 0}, "lora_rank has to be 1 or more"),
        ("layerskip", {"dropout": 1.0}, "a share below 1"),
    ],
)
def test_what_cannot_be(method: str, given: dict[str, Any], says: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Refused before any step."""
    with pytest.raises(BadOption, match=says):
        run(*wish(method, tiny, tmp_path / "out", **given), dry=False, show=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["exit", "layerskip"])
def test_targets_that_cannot_be_parted(method: str, tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel cannot be taken apart into layers"):
        made(method, families.gpt2())


def test_the_adapters_folder_is_told_from_a_number(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """`early_exit:FOLDER` names an exit of this target; another kind of folder is refused with the right spelling."""
    run(*asked("medusa", tiny, tmp_path / "heads", steps=2), dry=False, show=False)
    with pytest.raises(BadOption, match="write medusa:"):
        outrider.load(str(tiny[0]), f"early_exit:{tmp_path / 'heads'}", dtype="float32", offline=True)
    with pytest.raises(BadOption, match=r"names no layer and no folder: write early_exit:E"):
        outrider.load(str(tiny[0]), "early_exit:nowhere", dtype="float32", offline=True)
    run(*wish("exit", tiny, tmp_path / "exit", steps=2), dry=False, show=False)
    llm = outrider.load(str(tiny[0]), f"early_exit:{tmp_path / 'exit'}", dtype="float32", offline=True)
    assert llm.drafter.spec == f"early_exit:{tmp_path / 'exit'}" and "note" not in llm.configuration
