"""Training a drafter, method by method: what it learns from is what it meets, and what it learns shows in decoding."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import learning
import pytest
import torch
from loaded import read_model
from safetensors.torch import load_file

import outrider
from outrider import Sampling, features
from outrider.commands.train import Setup, measure, run, wanted
from outrider.drafters import DRAFTERS, make_drafter
from outrider.errors import BadOption, TrainingStopped, UsageError
from outrider.loading import Loader
from outrider.train.answers import read_answers
from outrider.train.corpus import Batch, OnlineFeatures, collate, draft_vocabulary, order, usable
from outrider.train.loop import News, Options, Trainer
from outrider.train.methods import METHODS, make_recipe
from outrider.train.recipe import Material, Recipe
from outrider.types import Tree

WHOLE = {"exit", "draft", "medusa2", "layerskip"}  # see test_training_whole.py
VARIANTS = {"eagle gru": {"cell": "gru"}, "eagle 2x4": {"cell": "transformer:2x4"}}  # a method, and its options
EVERY = [*sorted(METHODS.keys() - WHOLE), *VARIANTS]
VOCABULARY = 60  # of the tiny targets' hundred
QUIET: dict[str, dict[str, Any]] = {  # what a method draws at random is left out
    "eagle": {"noise": 0.0},
    "dflash": {"anchors": 1000},
}

HEARTY: dict[str, dict[str, Any]] = {
    "eagle": {"noise": 0.0, "matching": 1.0},
    "medusa": {"layers": 2},
    "dflash": {"anchors": 1000},
}  # to learn fast


AT_ONCE = ("medusa", "dflash")  # their laws come together, whatever has been drawn


def options_of(method: str, more: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The options of a method or a variant of one."""
    return more.get(method.split()[0], {}) | VARIANTS.get(method, {})


def target(name: str = "llama", *, fast: bool = False) -> Any:
    """A tiny target in the loop."""
    return outrider.load(families.make(name), "none", fast=fast)


def recipe_for(method: str, llm: Any, size: int = VOCABULARY, steps: int | None = None) -> Recipe:
    """A method at work on a tiny target."""
    torch.manual_seed(4)
    name, options = method.split()[0], options_of(method, QUIET)
    steps = METHODS[name].steps if steps is None else steps
    found = make_recipe(name, Material(llm.target, torch.arange(size) + (100 - size), steps, options))
    for parameter in found.head.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return found


def batch_of(llm: Any, recipe: Recipe, *lengths: int) -> Batch:
    """Random texts of these lengths, the first three tokens of each the prompt's."""
    texts = families.prompts(*lengths, seed=8)
    made = [
        learning.Answer(number=n, prompt=tuple(text[:3]), answer=tuple(text[3:]), temperature=1.0)
        for n, text in enumerate(texts)
    ]
    return collate(made, OnlineFeatures(llm.target, recipe.taps))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("method", EVERY)
def test_training_sees_what_drafting_sees(method: str, family: str) -> None:
    """The head's law over a text in training is its law when it drafts there, step by step."""
    llm = target(family)
    follow(recipe_for(method, llm), llm)


def follow(recipe: Recipe, llm: Any) -> None:
    """Compare the laws that a recipe computes over two texts with those that its drafter meets there."""
    method = recipe.method
    seen: list[torch.Tensor] = []
    logits = recipe.head.logits
    recipe.head.logits = lambda states: seen.append(logits(states)) or seen[-1]
    batch = batch_of(llm, recipe, 12, 16)
    recipe.losses(batch)
    trained, drafter = [step.detach() for step in seen], recipe.drafter(llm.target)
    counted = [batch.answer.roll(-(2 + step), 1) for step in range(len(trained))]
    for step, (laws, valid) in enumerate(zip(trained, counted, strict=True)):
        valid[:, -(2 + step) :] = False
        if method == "dflash":  # a block begins where the target wrote what follows its first token
            valid &= counted[0]
        for place, (row, slot) in enumerate(valid.nonzero().tolist()):
            text = batch.ids[row, : slot + 2].tolist()
            tree = Tree.chain(text[:-1])
            (scores,) = llm.target.forward([tree], llm.target.new_cache(), taps=drafter.taps)
            state = drafter.begin(text, scores.hidden)
            seen.clear()
            told = batch.ids[row, slot + 2 : slot + 2 + step].tolist()
            draft_along(drafter, state, told)
            met = seen[-1].reshape(-1, laws.shape[-1])
            ours = laws.reshape(len(valid.nonzero()), -1, laws.shape[-1])[place]
            away = (met[step if method in AT_ONCE else -1] - ours[-1]).abs().max()
            assert away < 1e-4 * max(1.0, float(ours[-1].abs().max())), (step, row, slot, away)


def draft_along(drafter: Any, state: Any, told: list[int]) -> None:
    """Let it draft one token more than it is told, the told ones first: a script takes the place of the noise."""

    class Told:
        """Noise that draws these tokens."""

        def draws(self, probs: torch.Tensor, positions: list[int]) -> list[int]:
            place = positions[0] - len(state.tokens)
            return [told[place] if place < len(told) else int(probs[0].argmax())]

    budget = outrider.Budget(len(told) + 1)
    drafter.propose([state], [budget], [Sampling(temperature=1.0)], [Told()])


@pytest.mark.parametrize("method", EVERY)
def test_later_tokens_do_not_reach_back(method: str) -> None:
    """Another token at place 10 leaves the losses of what is predicted before it as they were, to the bit."""
    llm = target()
    recipe = recipe_for(method, llm)
    one = batch_of(llm, recipe, 16)
    ids = one.ids.clone()
    ids[0, 10] = 7 if int(ids[0, 10]) != 7 else 8
    states = OnlineFeatures(llm.target, recipe.taps)
    changed, last = states(ids[0].tolist())
    other = dataclasses.replace(one, ids=ids, features=changed[None], last=last[None])
    before, after = recipe.losses(one), recipe.losses(other)
    for step in range(len(before.each)):
        last_slot = 10 - 2 - step  # its law is compared with the target's at place 9
        assert torch.equal(before.each[step, :, :last_slot], after.each[step, :, :last_slot])
        assert not torch.equal(before.each[step], after.each[step])


@pytest.mark.parametrize("method", EVERY)
def test_padding_changes_nothing(method: str) -> None:
    """A text costs in company what it costs alone."""
    llm = target()
    recipe = recipe_for(method, llm)
    both = recipe.losses(batch_of(llm, recipe, 9, 16))
    (alone,) = recipe.losses(batch_of(llm, recipe, 9)).each[None]
    assert torch.allclose(both.each[:, 0, :9], alone[:, 0], atol=1e-5)
    assert not bool(both.each[:, 0, 9:].any())


@pytest.mark.parametrize("method", EVERY)
def test_bfloat16(method: str) -> None:
    """Multiplied in bfloat16 a batch costs nearly what it costs in float32, and all weights learn from it."""
    llm = target()
    recipe = recipe_for(method, llm)
    batch = batch_of(llm, recipe, 9, 16)
    exact = float(recipe.losses(batch).mean.detach())
    with torch.autocast("cpu", torch.bfloat16):
        loss = recipe.losses(batch).mean
    loss.backward()
    assert float(loss.detach()) == pytest.approx(exact, rel=0.05) and float(loss.detach()) != exact
    for parameter in recipe.head.parameters():
        assert not parameter.requires_grad or bool(torch.isfinite(parameter.grad).all())


@pytest.mark.parametrize("fast", [False, True])
def test_training_features_are_serving_features(fast: bool) -> None:
    """What the trainer computes over a whole text is what the loop shows a drafter; on exact targets to the bit."""
    llm = target(fast=fast)
    taps = features.default_taps(3)
    text = families.prompts(40)[0]
    trained, last = OnlineFeatures(llm.target, taps)(text)
    cache = llm.target.new_cache()
    served = []
    for start in range(0, 40, 4):
        (scores,) = llm.target.forward([Tree.chain(text[start : start + 4])], cache, taps=(*taps, 3))
        cache.keep([range(4)])
        served.append(torch.cat([features.side_by_side(scores.hidden, taps), scores.hidden[3]], -1))
    whole = torch.cat(served)
    ours = torch.cat([trained, last], -1)
    assert torch.equal(ours, whole) if llm.exactness == "bits" else torch.allclose(ours, whole, atol=1e-4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A saved tiny target, and a folder of its answers."""
    return learning.answered(tmp_path_factory.mktemp("tiny"), 12, 16)


def asked(method: str, tiny: tuple[Path, Path], out: Path, *, fast: bool = False, **given: Any) -> tuple[Any, Any]:
    """Settings and wishes of a run."""
    settings = learning.settings(tiny[0], fast=fast)
    usual = {"draft_vocab": VOCABULARY, "batch_tokens": 64, "steps": 6, "evaluate_every": 3, "measured_tokens": 12}
    wishes = {**usual, **VARIANTS.get(method, {}), **given}
    return settings, wanted(method.split()[0], [tiny[1]], out, None, wishes)


@pytest.mark.parametrize("method", EVERY)
def test_overfitting_is_accepted(method: str, tmp_path: Path) -> None:
    """A head that knows the answers by heart drafts them: acceptance comes near k + 1, as the run measures it."""
    learning.tiny(tmp_path / "target")
    model = read_model(tmp_path / "target")
    learning.answers(model, tmp_path / "data", 4, 20)
    every = learning.lines(tmp_path / "data")
    known = [
        {**line, "number": 100 + line["number"], "held_out": False} for line in every
    ]  # what is measured is learnt
    file = tmp_path / "data" / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*every, *known]))
    given = {"steps": 90, "lr": 1e-2, "batch_tokens": 512, "evaluate_every": 90, "measured_tokens": 20}
    kept = {"features": "stored", "features_dtype": "float32"}  # as online, and faster
    options = {"draft_vocab": 100, "steps_ahead": 4, **given, **kept, **options_of(method, HEARTY)}
    document = run(
        *asked(method, (tmp_path / "target", tmp_path / "data"), tmp_path / "out", fast=True, **options),
        dry=False,
        show=False,
    )
    # Medusa's heads see one state each and not the tokens between, so the last few are not learnt by heart.
    assert document["acceptance_length"] > (3.8 if method == "medusa" else 4.2), document["curve"]


@pytest.mark.parametrize("method", EVERY)
def test_an_interrupted_run_equals_another(method: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """To the bit: weights, optimiser and figures. The break comes between two checkpoints."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    given = {"steps": 7, "checkpoint_every": 2, "evaluate_every": 3, "accumulate": 2}
    expected = run(*asked(method, tiny, whole, **given), dry=False, show=False)
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer._step

        def breaks(self: Trainer, number: int) -> Any:
            if number == 5:
                raise KeyboardInterrupt
            return step(self, number)

        patch.setattr(Trainer, "_step", breaks)
        with pytest.raises(KeyboardInterrupt):
            run(*asked(method, tiny, broken, **given), dry=False, show=False)
    again = run(*asked(method, tiny, broken, **given), dry=False, show=False)
    assert {**again, "out": "", "use": ""} == {**expected, "out": "", "use": ""}
    for part in ("state.safetensors", "state.json"):
        ours, theirs = ((tmp_path / f"{name}.training" / part).read_bytes() for name in ("whole", "broken"))
        assert ours == theirs, part
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    third = run(*asked(method, tiny, broken, **given), dry=False, show=False)
    assert third["curve"] == expected["curve"]


@pytest.mark.parametrize("policy", ["fixed:4", "fixed:3,7"])
@pytest.mark.parametrize("method", EVERY)
def test_a_trained_drafter_changes_no_token(method: str, policy: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Loaded from its folder: greedily and with a seed, alone and in a batch, the tokens of plain decoding."""
    if policy == "fixed:3,7" and not DRAFTERS[method.split()[0]].makes_trees:
        pytest.skip("it makes chains")
    run(*asked(method, tiny, tmp_path / "out"), dry=False, show=False)
    for fast in (False, True):
        llm = outrider.load(
            str(tiny[0]),
            f"{method.split()[0]}:{tmp_path / 'out'}",
            policy=policy,
            dtype="float32",
            offline=True,
            fast=fast,
        )
        plain = llm.using("none", policy="fixed:1")
        prompts = families.prompts(9, 1, 20, 2)
        for temperature in (0.0, 0.8):
            sampling = Sampling(temperature=temperature, seed=3)
            drafted = llm.generate(prompts, sampling=sampling, max_new_tokens=12)
            expected = [plain.generate(prompt, sampling=sampling, max_new_tokens=12).token_ids for prompt in prompts]
            assert [output.token_ids for output in drafted] == expected
            assert sum(output.stats.drafted for output in drafted) > 40


@pytest.mark.parametrize("method", EVERY)
def test_what_is_loaded_is_what_was_kept(method: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """The drafter in the folder drafts as the one that was measured."""
    settings, wish = asked(method, tiny, tmp_path / "out", steps=3)
    document = run(settings, wish, dry=False, show=False)
    llm = settings.load()
    drafter = make_drafter(
        f"{method.split()[0]}:{tmp_path / 'out'}", outrider.drafters.Setting(llm.target, llm.tokenizer, None)
    )
    held = [answer for answer in read_answers(tiny[1], 100) if answer.held_out]
    stats = measure(llm, drafter, held, Setup(measured_tokens=12))
    (kept,) = [point for point in document["curve"] if point["step"] == document["best_step"]]
    assert list(stats.survival) == pytest.approx(kept["survival"])
    manifest = json.loads((tmp_path / "out" / "config.json").read_text())
    assert manifest["training"]["acceptance_length"] == document["acceptance_length"]
    assert f"outrider generate --target {tiny[0]}" in (tmp_path / "out" / "README.md").read_text()


def test_the_target_stays(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Training takes no gradient of the target."""
    llm = target()
    for method in EVERY:
        recipe = recipe_for(method, llm)
        recipe.losses(batch_of(llm, recipe, 12)).mean.backward()
        own = {id(parameter) for parameter in recipe.head.parameters() if parameter.requires_grad}
        assert own and all(p.grad is not None for p in recipe.head.parameters() if p.requires_grad)
        assert {id(p) for p in recipe.parameters() if p.requires_grad} == own
    assert all(parameter.grad is None for parameter in llm.target.model.parameters())


def test_a_loss_that_is_no_number_stops(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, and the last checkpoint stays."""
    step = Trainer._step

    def poisoned(self: Trainer, number: int) -> Any:
        if number == 4:
            next(self.recipe.head.parameters()).data.fill_(float("nan"))
        return step(self, number)

    monkeypatch.setattr(Trainer, "_step", poisoned)
    given = {"checkpoint_every": 2, "evaluate_every": 100}
    with pytest.raises(TrainingStopped, match=r"no number in step 5: the last checkpoint is kept in .*lower --lr"):
        run(*asked("eagle3", tiny, tmp_path / "out", **given), dry=False, show=False)
    assert json.loads((tmp_path / "out.training" / "state.json").read_text())["progress"]["step"] == 4


Spoil = Callable[[Path], None]


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Change every answer of a folder."""

    def spoil(path: Path) -> None:
        every = learning.lines(path)
        (path / "answers.jsonl").write_text("".join(json.dumps({**line, **change(line)}) + "\n" for line in every))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: (path / "answers.jsonl").write_text(""), "holds no answers"),
        (lambda path: (path / "answers.jsonl").unlink(), "holds no answers"),
        (lambda path: (path / "data.json").unlink(), "make them with 'outrider data'"),
        (lambda path: (path / "answers.jsonl").write_text('{"number": 1}\n'), "Line 1 of .* is no answer"),
        (rewrite(lambda line: {"answer": [5000] * 9}), "another tokenizer"),
        (rewrite(lambda line: {"answer": line["answer"][:3]}), "No answer is left to train on"),
        (rewrite(lambda line: {"held_out": False}), "No prompt .* is held out"),
        (
            lambda path: (path / "data.json").write_text(
                (path / "data.json").read_text().replace('"template": null', '"template": "0123"')
            ),
            "another chat template",
        ),
    ],
)
def test_data_that_cannot_be_used(tiny: tuple[Path, Path], tmp_path: Path, spoil: Spoil, says: str) -> None:
    """Refused before any step, in one sentence."""
    learning.answers(read_model(tiny[0]), tmp_path / "data", 4, 10)
    spoil(tmp_path / "data")
    with pytest.raises(UsageError, match=says) as caught:
        run(*asked("eagle3", (tiny[0], tmp_path / "data"), tmp_path / "out"), dry=False, show=False)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert not (tmp_path / "out").exists()


def test_another_targets_answers_are_refused(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """By the hash of its weights."""
    learning.answers(families.make("llama", vocab_size=101), tmp_path / "data", 4, 10)
    with pytest.raises(BadOption, match="a vocabulary of 101"):
        run(*asked("eagle3", (tiny[0], tmp_path / "data"), tmp_path / "out"), dry=False, show=False)


def test_a_run_is_continued_with_the_same_options(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Or refused; how often it is saved may change."""
    run(*asked("eagle3", tiny, tmp_path / "out", steps=2), dry=False, show=False)
    run(*asked("eagle3", tiny, tmp_path / "out", steps=2, checkpoint_every=7), dry=False, show=False)
    with pytest.raises(BadOption, match=r"started with lr .* and is now given 0.1"):
        run(*asked("eagle3", tiny, tmp_path / "out", steps=2, lr=0.1), dry=False, show=False)


def test_bad_data_leaves_what_is_there(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """A run that is to go on with data that became useless: one sentence, and drafter and checkpoint stay."""
    learning.answers(read_model(tiny[0]), tmp_path / "data", 8, 16)
    here = (tiny[0], tmp_path / "data")
    run(*asked("eagle3", here, tmp_path / "out", steps=4, checkpoint_every=2), dry=False, show=False)
    kept = [tmp_path / "out" / "model.safetensors", tmp_path / "out.training" / "state.safetensors"]
    before = [file.read_bytes() for file in kept]
    for spoil in (
        lambda path: (path / "answers.jsonl").write_text(""),
        rewrite(lambda line: {"answer": [5000] * 9}),
    ):
        learning.answers(read_model(tiny[0]), tmp_path / "data", 8, 16)
        spoil(tmp_path / "data")
        with pytest.raises(UsageError):
            run(*asked("eagle3", here, tmp_path / "out", steps=4, checkpoint_every=2), dry=False, show=False)
        assert [file.read_bytes() for file in kept] == before
        (tmp_path / "data" / "answers.jsonl").unlink()


def test_multiplying_in_bfloat16(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Other losses, but near; weights stay in float32."""
    exact = run(*asked("eagle3", tiny, tmp_path / "exact"), dry=False, show=False)["curve"]
    rounded = run(*asked("eagle3", tiny, tmp_path / "rounded", bf16=True), dry=False, show=False)["curve"]
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours["loss"] != theirs["loss"] and ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
    tensors = load_file(tmp_path / "rounded" / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.float32


def test_batches_that_make_one_step(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Accumulated, the gradients of two batches move the weights as their mean does."""
    settings, wish = asked("medusa", tiny, tmp_path / "out", accumulate=2, steps=1, clip=1e9)
    llm = settings.load()
    recipe = make_recipe("medusa", Material(llm.target, torch.arange(100), 2, {"layers": 1}))
    for parameter in recipe.head.blocks.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    answers = usable(read_answers(tiny[1], 100), 99)
    states = OnlineFeatures(llm.target, recipe.taps)
    trainer = Trainer(recipe, answers, states, wish.options, tmp_path / "training", {})
    grads = []
    for places in trainer._order[:2]:
        recipe.zero_grad()
        recipe.losses(collate([answers[place] for place in places], states)).mean.backward()
        grads.append([parameter.grad.clone() for parameter in recipe.head.blocks.parameters()])
    trainer._step(0)
    for parameter, *parts in zip(recipe.head.blocks.parameters(), *grads, strict=True):
        assert torch.allclose(parameter.grad, sum(parts) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "says"), [("nosuch", "There is no tracker 'nosuch': choose one of"), ("wandb", "pip install wandb")]
)
def test_trackers_that_are_not_there(name: str, says: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Refused by name, before any step."""
    if name == "wandb":
        pytest.importorskip("tensorboard")
        if importlib.util.find_spec("wandb"):
            pytest.skip("wandb is installed here")
    with pytest.raises(BadOption, match=says):
        run(*asked("eagle3", tiny, tmp_path / "out", tracker=name), dry=False, show=False)
    assert not (tmp_path / "out.training").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tracker_is_told(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Each step's loss, and acceptance where it was measured; the run itself is as without."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    quiet = run(*asked("medusa", tiny, tmp_path / "quiet"), dry=False, show=False)
    found = run(*asked("medusa", tiny, tmp_path / "out", tracker="tensorboard"), dry=False, show=False)
    assert found["curve"] == quiet["curve"]
    events = EventAccumulator(str(tmp_path / "out.logs" / "outrider")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    lengths = [event.value for event in events.Scalars("acceptance_length")]
    assert lengths == pytest.approx([point["acceptance_length"] for point in found["curve"]])


def test_a_dry_run_trains_nothing(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """It counts what is there."""
    settings, wish = asked("eagle3", tiny, tmp_path / "out", steps=9, accumulate=2)
    found = run(settings, wish, dry=True, show=False)["dry_run"]
    head = recipe_for("eagle3", target()).head
    assert found["parameters"] == sum(parameter.numel() for parameter in head.parameters())
    assert (found["answers"], found["steps"]) == (9, 9)
    assert found["memory"] == 16 * found["parameters"] and found["seconds"] > 0
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.training").exists()


def test_eagle3_starts_near_a_uniform_guess() -> None:
    """Whatever the scale of the target's output layer."""
    llm = target()
    with torch.no_grad():
        llm.target.model.get_output_embeddings().weight.mul_(10)
    torch.manual_seed(4)
    recipe = make_recipe("eagle3", Material(llm.target, torch.arange(100), 3, {}))
    loss = float(recipe.losses(batch_of(llm, recipe, 30, 30)).mean.detach())
    assert loss < torch.tensor(100.0).log() + 1


def test_batches() -> None:
    """Every answer once an epoch, no batch larger than asked, another order in each epoch and the same one again."""
    lengths = [5 + 7 * n % 50 for n in range(150)]
    first = order(lengths, 100, 3, 0)
    assert sorted(place for batch in first for place in batch) == list(range(150))
    assert all(len(batch) == 1 or len(batch) * max(lengths[p] for p in batch) <= 100 for batch in first)
    assert first == order(lengths, 100, 3, 0)
    assert first != order(lengths, 100, 3, 1) and first != order(lengths, 100, 4, 0)
    padded = sum(len(batch) * max(lengths[place] for place in batch) for batch in first)
    assert padded < 1.2 * sum(lengths)


def test_the_draft_vocabulary() -> None:
    """The ends, the commonest tokens, rising; all of them where as many are asked for."""
    texts = [(1, 9, 9, 9, 9, 30, 30, 30), (1, 30, 9, 40, 40, 41, 2, 2)]
    made = [learning.Answer(number=0, prompt=t[:1], answer=t[1:], temperature=1.0) for t in texts]
    assert draft_vocabulary(made, 4, 100, (99,)).tolist() == [9, 30, 40, 99]
    assert draft_vocabulary(made, 8, 100, ()).tolist() == [0, 1, 2, 3, 9, 30, 40, 41]
    assert draft_vocabulary(made, 100, 100, ()).tolist() == list(range(100))


def test_long_answers_are_cut() -> None:
    """To what is trained on; those of which too little is left, and those held out, go."""
    made = [
        learning.Answer(number=n, prompt=(1,) * size, answer=(2,) * 20, temperature=1.0, held_out=n == 3)
        for n, size in enumerate((5, 22, 23, 5))
    ]
    assert [(a.number, len(a.ids)) for a in usable(made, 30)] == [(0, 25), (1, 30)]


def test_two_batches_are_one_step_when_they_are_accumulated(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Half the steps, and gradients of both."""
    llm = target()
    made = usable(read_answers(tiny[1], 100), 64)
    results = []
    for accumulate in (1, 2):
        recipe = recipe_for("eagle3", llm)
        options = Options(batch_tokens=32, accumulate=accumulate, epochs=1.0)
        trainer = Trainer(
            recipe, made, OnlineFeatures(llm.target, recipe.taps), options, tmp_path / str(accumulate), {}
        )
        shown: list[News] = []
        trainer.run(None, lambda _: None, shown.append)
        results.append((trainer.total, sum(news.tokens for news in shown)))
    assert results[0][0] // 2 == results[1][0] and results[0][1] >= results[1][1] > 0


def test_a_target_that_hides_its_parts() -> None:
    """Is refused, with the remedy."""
    from outrider.compiled import CompiledTarget

    loaded = Loader(fast=False).wrap(families.make("llama"), None)
    with pytest.raises(UsageError, match="leave out what makes it so"):
        features.embedding(CompiledTarget(loaded.target, backend="eager"))


@pytest.mark.parametrize("method", ["eagle", *VARIANTS])
def test_cells_are_what_they_are_called(method: str) -> None:
    """Layers, heads and gates; several steps are unrolled through each of them as they are drafted."""
    llm = target()
    recipe = recipe_for(method, llm, steps=3)
    names = set(recipe.head.trained())
    sizes = {"eagle": (1, 4, 2), "eagle 2x4": (2, 4, 4)}.get(method)
    if sizes is None:
        assert {name.split(".")[0] for name in names} == {"gru"}
    else:
        layers, heads, grouped = sizes
        assert {name.split(".")[1] for name in names if name.startswith("layers")} == set(map(str, range(layers)))
        assert recipe.head.shape.block.heads == heads and recipe.head.shape.block.kv_heads == grouped
        assert ("layers.1.input_layernorm.weight" in names) == (layers > 1)
        assert "layers.0.input_layernorm.weight" not in names
    follow(recipe, llm)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("lstm", "There is no cell 'lstm': write target, gru, or transformer:LAYERSxHEADS"),
        ("transformer:0x4", "There is no cell"),
        ("transformer:2x5", "States of width 32 do not fall into 5 heads of even size"),
        ("transformer:2x32", "States of width 32 do not fall into 32 heads"),
    ],
)
def test_cells_that_do_not_exist(cell: str, says: str) -> None:
    """Are refused with what to write."""
    llm = target()
    with pytest.raises(BadOption, match=says):
        make_recipe("eagle", Material(llm.target, torch.arange(100), 1, {"cell": cell}))
