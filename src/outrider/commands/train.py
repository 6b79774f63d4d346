"""`outrider train`: from a folder of answers to a drafter's folder."""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import checkpoints
from ..api import Outrider
from ..drafters import TRAINED, Drafter
from ..drafters.none import NoDrafter
from ..drafters.trained import Opened, identify, open_folder
from ..engine import Engine
from ..errors import BadOption
from ..features import width_of
from ..loading import Loader
from ..policy import Fixed
from ..row import Request
from ..sampling import Sampling
from ..stats import Stats
from ..target import Target
from ..train.answers import Answer, Source, read_answers, read_source
from ..train.changing import PROMISE
from ..train.corpus import Features, OnlineFeatures, collate, draft_vocabulary, spare_token, teaches, usable, whole
from ..train.loop import Estimate, News, Options, Trainer, check_tracker
from ..train.methods import make_recipe, own_options, recipe_class
from ..train.processes import parted
from ..train.recipe import Material, Recipe
from ..train.saving import Progress as Run
from ..train.saving import checkpoint_folder
from ..train.start import go_on
from ..train.stored import LIMIT
from .features import KINDS, Keeping, about, stored
from .keeper import Keeper
from .settings import Settings, decoder_only, drafter_setting
from .showing import versions

MEASURED_DEPTH = 4  # draft tokens per round when acceptance is measured
LEARN = ("answers", "texts")
_MEASURED_BATCH = 8  # prompts
_SETTLED = 8  # held-out texts for `Recipe.settle`


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of, apart from `loop.Options`.

    Attributes:
        draft_vocab: how many tokens can be drafted.
        longest: tokens of prompt and answer that are trained on; the rest is cut off.
        learn: at which tokens: of "answers", or of whole "texts", prompts too.
        steps_ahead: how many tokens ahead the head is trained for.
        start_from: folder of a drafter of this method that it goes on from; empty for a new one.
        measured_prompts, measured_tokens: held-out prompts, and tokens of each answer, of a measurement.
        features: where the target's states come from: "online", or "stored" beside the answers.
        features_dtype: of stored ones.
        features_limit: GiB that they may take beside each folder of answers.
    """

    draft_vocab: int = 8192
    longest: int = 768
    learn: str = "answers"
    steps_ahead: int = 0
    start_from: str = ""
    measured_prompts: int = 24
    measured_tokens: int = 64
    features: str = "online"
    features_dtype: str = "bfloat16"
    features_limit: float = LIMIT

    def __post_init__(self) -> None:
        if not self.features_limit > 0:
            raise BadOption("features_limit has to be above 0 GiB.")
        if self.learn not in LEARN:
            raise BadOption(f"learn is {self.learn!r}: choose {' or '.join(LEARN)}.")
        if self.features not in KINDS:
            raise BadOption(f"There are no features {self.features!r}: choose {' or '.join(KINDS)}.")
        if min(self.draft_vocab, self.longest, self.measured_prompts, self.measured_tokens) < 1 or self.steps_ahead < 0:
            raise BadOption("Vocabulary, lengths and counts have to be 1 or more.")

    @property
    def lasting(self) -> dict[str, Any]:
        """What a run cannot change on its way."""
        found = asdict(self)
        del found["features_limit"]
        return found if self.features == "stored" else {k: v for k, v in found.items() if not k.startswith("features")}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        method: see `train.methods`.
        data: folders of answers.
        out: folder of the drafter; its checkpoints lie beside it, in OUT.training.
        options, setup: how.
        own: the method's own options.
        chooses_vocabulary: whether a draft vocabulary is chosen from the answers; it may be that of a drafter to go on
            from.
    """

    method: str
    data: tuple[Path, ...]
    out: Path
    options: Options
    setup: Setup
    own: dict[str, Any]
    chooses_vocabulary: bool = True


def wanted(method: str, data: Sequence[Path], out: Path, config: Path | None, given: Mapping[str, Any]) -> Wanted:
    """What is asked for: the options that were given, then those of the file, then the defaults.

    Raises:
        BadOption: there is no such method, or an option or value that it does not have.
    """
    kind = recipe_class(method)
    said = _from_file(config) | {name: value for name, value in given.items() if value is not None}
    chosen = {"lr": kind.rate, "steps_ahead": kind.steps, **own_options(method), **said}
    for name, means in (("steps_ahead", kind.chooses_steps), ("draft_vocab", kind.reduces)):
        if name in said and not means:
            raise BadOption(f"{name} means nothing to training {method}: leave it out.")
    if parted() and not kind.parts:
        raise BadOption(f"Weights of {method} cannot be parted (FSDP): launch it with --multi_gpu instead.")
    if said.get("start_from") and method not in TRAINED:
        raise BadOption(f"Training {method} cannot go on from a drafter: leave start_from out.")
    kept = {"start"} if "vocabulary" in kind.resizes else {"start", "draft_vocab"}
    if said.get("start_from") and (lost := sorted(said.keys() & kept)):
        raise BadOption(f"{lost[0]} is that of the drafter to go on from: leave it out, or start_from.")
    about_stored = said.keys() & {"features_dtype", "features_limit"}
    if about_stored and chosen.get("features") != "stored":
        raise BadOption(f"{min(about_stored)} is about stored features: say --features stored, or leave it out.")
    parts = []
    for part in (Options, Setup):
        names = {item.name for item in fields(part)}
        parts.append({name: chosen.pop(name) for name in names & chosen.keys()})
    unknown = chosen.keys() - own_options(method).keys()
    if unknown:
        raise BadOption(f"{min(unknown)!r} is no option of training {method}: leave it out.")
    try:
        options = Options(**parts[0])
        check_tracker(options.tracker)
        choice = "draft_vocab" in said or not said.get("start_from")
        return Wanted(method, tuple(data), out, options, Setup(**parts[1]), chosen, choice)
    except TypeError as error:
        raise BadOption(f"{config} has a value of another kind than its option ({error}): correct it.") from error


def _from_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        found = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadOption(f"{config} cannot be read as TOML ({error}): write lines like lr = 0.0005.") from error
    return {name.replace("-", "_"): value for name, value in found.items()}


def run(settings: Settings, asked: Wanted, *, dry: bool, show: bool) -> dict[str, Any]:
    """Train, or say what it would take; the document is what `--json` prints, empty in all processes but one.

    Ctrl-C keeps the last checkpoint.
    """
    sources = [read_source(folder) for folder in asked.data]
    llm = settings.load()
    decoder_only(llm, "train")
    target = identify(llm.target, settings.target)
    data = [(path, answers_of(path, source, llm, target)) for source, path in zip(sources, asked.data, strict=True)]
    every = [answer for _, found in data for answer in found]
    prompts = spread([answer for answer in every if answer.held_out], asked.setup.measured_prompts)
    if not prompts:
        raise BadOption(f"No prompt in {asked.data[-1]} is held out, so acceptance cannot be measured: make more data.")
    answers = usable(every, asked.setup.longest)
    if asked.setup.learn == "texts":
        answers = whole(answers)
    torch.manual_seed(asked.options.seed)  # first weights
    earlier = asked.setup.start_from
    before = open_folder(asked.method, earlier, drafter_setting(llm)) if earlier else None
    ids = _draft_ids(asked, answers, llm.target, before)
    recipe = make_recipe(asked.method, _material(settings, asked, llm, ids, spare_token(every, llm.target.vocabulary)))
    if before is not None:
        go_on(recipe, before)
    made_of = {"method": asked.method, "target": target.hash, "answers": len(answers)}
    if before is not None and asked.chooses_vocabulary:
        made_of["vocabulary"] = "chosen anew"
    folder = checkpoint_folder(asked.out)
    online = OnlineFeatures(llm.target, recipe.taps)
    states = online if dry else _states(asked.setup, recipe, data, online, show)
    trainer = Trainer(recipe, answers, states, asked.options, folder, {**made_of, **asked.setup.lasting, **asked.own})
    if dry:
        estimate = trainer.estimate()
        kept = _stored_bytes(asked.setup, recipe, data, llm.target)
        if show:
            _show_estimate(estimate, kept)
        return {"dry_run": {**asdict(estimate), "stored_features": kept}, **versions()}
    held = [collate([answer], online) for answer in usable(prompts[:_SETTLED], asked.setup.longest, held_out=True)]
    told = {**asdict(asked.options), **asdict(asked.setup), **asked.own}
    told["start_from"] = Path(earlier).name  # where it lay on this machine says nothing to others
    measured = f"held-out prompts, greedy, chains of {MEASURED_DEPTH}, by the decode loop"
    known = before.checkpoint.manifest.training if before is not None else {}
    keeper = Keeper(asked.out, recipe, ids, llm, settings.target, sources, len(answers), told, measured, held, known)
    with _bar(trainer.total, show and trainer.leads) as advance:
        progress = trainer.run(
            lambda target, drafter: measure(llm, drafter, prompts, asked.setup, target=target),
            keeper.keep,
            advance,
            goes_on=before is not None,
        )
    if not trainer.leads:
        return {}
    use = recipe.use(str(asked.out), settings.target)
    if show:
        _show_result(progress, asked.out, use, recipe.changes)
    return {
        "method": asked.method,
        "out": str(asked.out),
        "use": {"target": use[0], "drafter": use[1]},
        "lossless_with_respect_to": use[0],
        "steps": progress.step,
        "tokens": progress.tokens,
        "acceptance_length": progress.best,
        "best_step": progress.best_step,
        "curve": progress.curve,
        **versions(),
    }


Data = list[tuple[Path, list[Answer]]]
"""Folders with their answers."""


def answers_of(path: Path, source: Source, llm: Outrider, target: checkpoints.TargetId) -> list[Answer]:
    """The answers of a folder, of this very target to prompts of its template.

    Raises:
        BadOption: they are not.
    """
    source.target.check(target, path)
    if source.template != checkpoints.template_hash(llm.tokenizer):
        raise BadOption(
            f"The prompts in {path} were written with another chat template than this target's: make the data with "
            "this target, or load it with that tokenizer."
        )
    return read_answers(path, llm.target.vocabulary)


def _taught(data: Data, longest: int) -> Data:
    """Those that are trained on, whole."""
    return [(path, [one for one in found if not one.held_out and teaches(one, longest)]) for path, found in data]


def _states(setup: Setup, recipe: Recipe, data: Data, online: OnlineFeatures, show: bool) -> Features:
    if setup.features == "online":
        return online
    keeping = Keeping(setup.features_dtype, setup.features_limit, show)
    return stored(online.target, recipe.taps, _taught(data, setup.longest), setup.longest, keeping)


def _stored_bytes(setup: Setup, recipe: Recipe, data: Data, target: Target) -> int:
    """What stored states take; 0 where they are computed."""
    if setup.features == "online":
        return 0
    size = about(target, recipe.taps, setup.features_dtype).token_bytes(width_of(target))
    return size * sum(len(answer.ids) for _, answers in _taught(data, setup.longest) for answer in answers)


def _draft_ids(asked: Wanted, answers: Sequence[Answer], target: Target, before: Opened | None) -> torch.Tensor:
    """[n] int64, the draft vocabulary: a new one, or that of the drafter to go on from."""
    if before is not None and not asked.chooses_vocabulary:
        return before.checkpoint.ids
    size = asked.setup.draft_vocab if recipe_class(asked.method).reduces else target.vocabulary
    return draft_vocabulary(answers, size, target.vocabulary, target.eos)


def _material(settings: Settings, asked: Wanted, llm: Outrider, ids: torch.Tensor, spare: int) -> Material:
    """What the method starts from."""

    def model() -> Any:
        loader = Loader(torch.float32, settings.device, settings.offline, settings.trust_remote_code)
        return loader.transformers_model(settings.target)

    def loop(target: Target) -> Engine:
        return Engine(target, NoDrafter(), llm.verifier, lambda: Fixed(1))

    return Material(llm.target, ids, asked.setup.steps_ahead, asked.own, spare, model, loop)


def measure(
    llm: Outrider,
    drafter: Drafter,
    prompts: Sequence[Answer],
    setup: Setup,
    depth: int = MEASURED_DEPTH,
    nodes: int = 0,
    target: Target | None = None,
) -> Stats:
    """Real acceptance, greedily and by the decode loop itself: of chains, or of trees with so many nodes; with another
    target than the loaded one, where the drafter is for that."""
    engine = Engine(target or llm.target, drafter, llm.verifier, lambda: Fixed(depth, nodes), llm.tokenizer)
    rounds = []
    for first in range(0, len(prompts), _MEASURED_BATCH):
        part = prompts[first : first + _MEASURED_BATCH]
        requests = [Request(answer.prompt, Sampling(), 0, setup.measured_tokens) for answer in part]
        rounds += [round_ for _, round_ in engine.run(requests)]
    return Stats.of(rounds)


def spread(answers: Sequence[Answer], count: int) -> list[Answer]:
    """So many different prompts, of every category alike, and of each from its first answer to its last, so that all
    folders have some."""
    by_category: dict[str, dict[tuple[int, ...], Answer]] = {}
    for answer in answers:
        by_category.setdefault(answer.category, {}).setdefault(answer.prompt, answer)
    piles = [list(pile.values()) for _, pile in sorted(by_category.items())]
    taken = sorted((turn, place) for place, pile in enumerate(piles) for turn in range(len(pile)))[:count]
    shares = Counter(place for _, place in taken)
    return [piles[place][turn * len(piles[place]) // shares[place]] for turn, place in taken]


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[News], None]]:
    """A bar with loss, tokens per second, acceptance length and the time left; measurements stay on the screen."""
    errors = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, {task.fields[speed]:.0f} tokens/s, AL {task.fields[length]}"),
        TimeRemainingColumn(),
    )
    began, seen, mean = time.perf_counter(), 0, None
    with Progress(*columns, console=errors, transient=True, disable=not (shown and errors.is_terminal)) as bar:
        task = bar.add_task("", total=total, loss=0.0, speed=0.0, length="-")

        def advance(news: News) -> None:
            nonlocal seen, mean
            seen += news.tokens
            mean = news.loss if mean is None else 0.95 * mean + 0.05 * news.loss
            length = "-" if news.acceptance_length is None else f"{news.acceptance_length:.2f}"
            speed = seen / (time.perf_counter() - began)
            bar.update(task, completed=news.step, loss=mean, speed=speed, length=length)
            if news.measured and shown:
                bar.console.print(f"step {news.step} of {news.total}: loss {mean:.3f}, acceptance length {length}")

        yield advance


def _show_estimate(found: Estimate, kept: int) -> None:
    print(f"{found.parameters / 1e6:.2f} million parameters, {found.memory / 1e6:.0f} MB with gradients and optimiser")
    print(f"{found.answers} answers, {found.steps} steps, {found.tokens} answer tokens")
    if kept:
        print(f"{kept / 1e9:.2f} GB of states beside the answers")
    print(f"about {found.seconds / 60:.1f} minutes here, measuring acceptance apart")


def _show_result(progress: Run, out: Path, use: tuple[str, str], changed: bool) -> None:
    length = "unknown" if progress.best is None else f"{progress.best:.3f}"
    print(f"{out}: acceptance length {length} at step {progress.best_step} of {progress.step}")
    print(f"use it with --target {use[0]} --drafter {use[1]}")
    if changed:
        print(PROMISE)
