"""`outrider train`: from a folder of answers to a drafter's folder."""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import checkpoints
from ..api import Outrider
from ..checkpoints import Checkpoint, Manifest
from ..drafters import Drafter
from ..drafters.trained import identify
from ..engine import Engine
from ..errors import BadOption
from ..policy import Fixed
from ..row import Request
from ..sampling import Sampling
from ..stats import Stats
from ..train.answers import Answer, Source, read_answers, read_source
from ..train.corpus import Batch, OnlineFeatures, collate, draft_vocabulary, spare_token, usable
from ..train.loop import Estimate, News, Options, Trainer
from ..train.methods import make_recipe, own_options, recipe_class
from ..train.recipe import Material, Recipe
from ..train.saving import Progress as Run
from .settings import Settings, decoder_only
from .showing import versions

MEASURED_DEPTH = 4  # draft tokens per round when acceptance is measured
_MEASURED_BATCH = 8  # prompts
_SETTLED = 8  # held-out texts for `Recipe.settle`


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of, apart from `loop.Options`.

    Attributes:
        draft_vocab: how many tokens can be drafted.
        longest: tokens of prompt and answer that are trained on; the rest is cut off.
        steps_ahead: how many tokens ahead the head is trained for.
        measured_prompts, measured_tokens: held-out prompts, and tokens of each answer, of a measurement.
    """

    draft_vocab: int = 8192
    longest: int = 768
    steps_ahead: int = 0
    measured_prompts: int = 24
    measured_tokens: int = 64

    def __post_init__(self) -> None:
        if min(self.draft_vocab, self.longest, self.measured_prompts, self.measured_tokens) < 1 or self.steps_ahead < 0:
            raise BadOption("Vocabulary, lengths and counts have to be 1 or more.")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        method: see `train.methods`.
        data: folders of answers.
        out: folder of the drafter; its checkpoints lie beside it, in OUT.training.
        options, setup: how.
        own: the method's own options.
    """

    method: str
    data: tuple[Path, ...]
    out: Path
    options: Options
    setup: Setup
    own: dict[str, Any]


def wanted(method: str, data: Sequence[Path], out: Path, config: Path | None, given: Mapping[str, Any]) -> Wanted:
    """What is asked for: the options that were given, then those of the file, then the defaults.

    Raises:
        BadOption: there is no such method, or an option or value that it does not have.
    """
    kind = recipe_class(method)
    chosen = {"lr": kind.rate, "steps_ahead": kind.steps, **own_options(method), **_from_file(config)}
    chosen |= {name: value for name, value in given.items() if value is not None}
    parts = []
    for part in (Options, Setup):
        names = {item.name for item in fields(part)}
        parts.append({name: chosen.pop(name) for name in names & chosen.keys()})
    unknown = chosen.keys() - own_options(method).keys()
    if unknown:
        raise BadOption(f"{min(unknown)!r} is no option of training {method}: leave it out.")
    try:
        return Wanted(method, tuple(data), out, Options(**parts[0]), Setup(**parts[1]), chosen)
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
    every = []
    for source, path in zip(sources, asked.data, strict=True):
        every += answers_of(path, source, llm, target)
    prompts = spread([answer for answer in every if answer.held_out], asked.setup.measured_prompts)
    if not prompts:
        raise BadOption(f"No prompt in {asked.data[-1]} is held out, so acceptance cannot be measured: make more data.")
    answers = usable(every, asked.setup.longest)
    torch.manual_seed(asked.options.seed)  # first weights
    ids = draft_vocabulary(answers, asked.setup.draft_vocab, llm.target.vocabulary, llm.target.eos)
    spare = spare_token(every, llm.target.vocabulary)
    recipe = make_recipe(asked.method, Material(llm.target, ids, asked.setup.steps_ahead, asked.own, spare))
    about = {"method": asked.method, "target": target.hash, "answers": len(answers), **asdict(asked.setup), **asked.own}
    folder = asked.out.with_name(asked.out.name + ".training")
    states = OnlineFeatures(llm.target, recipe.taps)
    trainer = Trainer(recipe, answers, states, asked.options, folder, about)
    if dry:
        estimate = trainer.estimate()
        if show:
            _show_estimate(estimate)
        return {"dry_run": asdict(estimate), **versions()}
    held = [collate([answer], states) for answer in usable(prompts[:_SETTLED], asked.setup.longest, held_out=True)]
    keeper = Keeper(asked, sources, recipe, ids, llm, target, len(answers), held)
    with _bar(trainer.total, show and trainer.leads) as advance:
        progress = trainer.run(lambda drafter: measure(llm, drafter, prompts, asked.setup), keeper.keep, advance)
    if not trainer.leads:
        return {}
    if show:
        _show_result(progress, asked.out)
    return {
        "method": asked.method,
        "out": str(asked.out),
        "steps": progress.step,
        "tokens": progress.tokens,
        "acceptance_length": progress.best,
        "best_step": progress.best_step,
        "curve": progress.curve,
        **versions(),
    }


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


def measure(
    llm: Outrider,
    drafter: Drafter,
    prompts: Sequence[Answer],
    setup: Setup,
    depth: int = MEASURED_DEPTH,
    nodes: int = 0,
) -> Stats:
    """Real acceptance, greedily and by the decode loop itself: of chains, or of trees with so many nodes."""
    engine = Engine(llm.target, drafter, llm.verifier, lambda: Fixed(depth, nodes), llm.tokenizer)
    rounds = []
    for first in range(0, len(prompts), _MEASURED_BATCH):
        part = prompts[first : first + _MEASURED_BATCH]
        requests = [Request(answer.prompt, Sampling(), 0, setup.measured_tokens) for answer in part]
        rounds += [round_ for _, round_ in engine.run(requests)]
    return Stats.of(rounds)


def spread(answers: Sequence[Answer], count: int) -> list[Answer]:
    """So many different prompts, of every category alike."""
    by_category: dict[str, dict[tuple[int, ...], Answer]] = {}
    for answer in answers:
        by_category.setdefault(answer.category, {}).setdefault(answer.prompt, answer)
    piles = [list(pile.values()) for _, pile in sorted(by_category.items())]
    found: list[Answer] = []
    for turn in range(max(map(len, piles), default=0)):
        found += [pile[turn] for pile in piles if turn < len(pile)]
    return found[:count]


@dataclass(frozen=True, slots=True)
class Keeper:
    """Writes the drafter's folder; see `run` for what it holds."""

    asked: Wanted
    sources: list[Source]
    recipe: Recipe
    ids: torch.Tensor
    llm: Outrider
    target: checkpoints.TargetId
    answers: int
    held_out: list[Batch]

    def keep(self, progress: Run) -> None:
        """Write the head as it stands."""
        self.recipe.settle(self.held_out)
        options, latest = self.asked.options, progress.curve[-1]
        facts = {
            "acceptance_length": latest["acceptance_length"],
            "acceptance_by_position": latest["survival"],
            "measured": f"held-out prompts, greedy, chains of {MEASURED_DEPTH}, by the decode loop",
            "step": progress.step,
            "answer_tokens_seen": progress.tokens,
            "answers": self.answers,
            "data": [
                f"{source.prompts}, answered by {source.target.name} at temperatures {list(source.temperatures)}"
                for source in self.sources
            ],
            "options": {**asdict(options), **asdict(self.asked.setup), **self.asked.own},
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "versions": versions(),
        }
        manifest = Manifest(
            method=self.asked.method,
            target=self.target,
            taps=self.recipe.taps,
            template=checkpoints.template_hash(self.llm.tokenizer),
            draft_vocabulary=len(self.ids),
            shape=self.recipe.shape,
            training=facts,
        )
        card = checkpoints.card(manifest, facts)
        checkpoints.write(self.asked.out, Checkpoint(manifest, self.recipe.head.trained(), self.ids), card)


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


def _show_estimate(found: Estimate) -> None:
    print(f"{found.parameters / 1e6:.2f} million parameters, {found.memory / 1e6:.0f} MB with gradients and optimiser")
    print(f"{found.answers} answers, {found.steps} steps, {found.tokens} answer tokens")
    print(f"about {found.seconds / 60:.1f} minutes here, measuring acceptance apart")


def _show_result(progress: Run, out: Path) -> None:
    length = "unknown" if progress.best is None else f"{progress.best:.3f}"
    print(f"{out}: acceptance length {length} at step {progress.best_step} of {progress.step}")
