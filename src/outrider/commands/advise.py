"""`outrider advise`: ask, weigh, show the methods in order with what to run next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..advise.measured import argued
from ..advise.methods import Scene
from ..advise.ranking import Asked, Measured, Recommendation, rank
from ..advise.shape import Shape
from ..advise.situation import Goal, Hardware, Situation, as_size, parse_memory
from ..drafters import DRAFTERS
from ..drafters.model import shared_ids
from ..errors import BadOption, VocabularyMismatch
from ..loading import Loader, as_dtype, native_dtype
from ..measure.reading import read
from ..measure.results import Results
from .showing import versions

SCHEMA = 1
CONTEXT = 4096  # tokens, where nothing else is said
_SHOWN = 5  # methods with their reasons on the screen; --json has all
_APART = ("int8", "offline", "trust_remote_code")  # options that are there or not
Ask = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options as they were given; None for those that were not."""

    target: str | None = None
    draft_model: str | None = None
    memory: str | None = None
    hardware: str | None = None
    batch: int | None = None
    goal: str | None = None
    can_train: bool | None = None
    small_model: bool | None = None
    text_in_prompt: bool | None = None
    must_be_exact: bool | None = None
    temperature: float | None = None
    context: int | None = None
    dtype: str | None = None
    int8: bool = False
    results: Path | None = None
    offline: bool = False
    trust_remote_code: bool = False

    @property
    def silent(self) -> bool:
        """Whether nothing was said of the situation."""
        return not self.int8 and all(
            getattr(self, item.name) is None for item in fields(self) if item.name not in _APART
        )

    def check(self) -> None:
        """Refuse what would change nothing or contradicts itself.

        Raises:
            BadOption: with the remedy.
        """
        needy: dict[str, object] = {"--memory": self.memory, "--context": self.context, "--dtype": self.dtype}
        needy |= {"--quantize": self.int8 or None, "--results": self.results}
        for name, value in needy.items():
            if value is not None and self.target is None:
                raise BadOption(f"{name} is about a model: name it with --target (its configuration alone is read).")
        if self.draft_model is not None and self.small_model is False:
            raise BadOption("--draft-model names a small model and --no-small-model says there is none: leave one out.")
        if self.hardware not in (None, "cpu", "gpu"):
            raise BadOption(f"--hardware is {self.hardware!r}: choose cpu or gpu.")
        if self.goal not in (None, "latency", "throughput"):
            raise BadOption(f"--goal is {self.goal!r}: choose latency or throughput.")

    def situation(self, target: Shape | None, same_tokens: bool | None) -> Situation:
        """What the rules look at.

        Args:
            target: its sizes, if it was named.
            same_tokens: whether the small model has the target's tokenizer; None where nobody looked.
        """
        hardware: Hardware | None = "gpu" if self.hardware == "gpu" else "cpu" if self.hardware else None
        goal: Goal | None = "latency" if self.goal == "latency" else "throughput" if self.goal else None
        return Situation(
            memory=None if self.memory is None else parse_memory(self.memory),
            hardware=hardware,
            batch=self.batch or 1,
            goal=goal,
            can_train=self.can_train,
            small_model=self.small_model if same_tokens is None else same_tokens,
            text_in_prompt=self.text_in_prompt,
            must_be_exact=self.must_be_exact,
            temperature=self.temperature,
            has_mtp=None if target is None else target.mtp_layers > 0,
        )


def run(wanted: Wanted, commands: Collection[str], *, show: bool, ask: Ask | None = None) -> dict[str, Any]:
    """Advise; the document is what `--json` prints.

    Args:
        wanted: the options.
        commands: of the command line, those that exist.
        show: on standard output, for people.
        ask: puts a question to a person where nothing was said; None where nobody is there.

    Raises:
        UsageError: nothing was said and nobody can be asked, or what was said cannot be used.
    """
    if wanted.silent:
        if ask is None:
            raise BadOption(
                "Say something of your situation, for example --target, --hardware cpu, --no-train or "
                "--text-in-prompt; before a terminal outrider advise asks."
            )
        wanted = dialogue(ask)
    wanted.check()
    results = None if wanted.results is None else _results(wanted.results, wanted.target)
    scene = _scene(wanted)
    situation = wanted.situation(scene.target if scene else None, _same_tokens(wanted, scene))
    asked = Asked(wanted.target, wanted.draft_model, situation.batch, commands)
    told = rank(situation, scene, asked)
    if results is not None:
        told = argued(told, results, situation, asked)
    notes = list(_notes(wanted, situation, scene, told))
    if show:
        _show(told, scene, notes)
    return {
        "schema": SCHEMA,
        "situation": {item.name: getattr(situation, item.name) for item in fields(situation)},
        "target": _sizes(wanted, scene),
        "recommendations": [_record(one) for one in told],
        "notes": notes,
        "versions": versions(),
    }


def dialogue(ask: Ask) -> Wanted:
    """The questions one after another; an empty answer says that nobody knows.

    Raises:
        BadOption: an answer that is none.
    """

    def yes(question: str) -> bool | None:
        while True:
            answer = ask(f"{question} [y/n, Enter if you do not know] ").strip().lower()
            if answer in ("", "y", "yes", "n", "no"):
                return None if not answer else answer.startswith("y")

    def one_of(question: str, *choices: str) -> str | None:
        while True:
            answer = ask(f"{question} [{' or '.join(choices)}, Enter if you do not know] ").strip().lower()
            if not answer or answer in choices:
                return answer or None

    def some(question: str) -> str | None:
        return ask(f"{question} [Enter if you do not know] ").strip() or None

    target = some("Which model: a folder, a hub id, a .gguf file, or demo?")
    memory = some("How much memory may it take, like 16GiB?") if target else None
    hardware = one_of("Where does it run?", "cpu", "gpu")
    batch = some("How many requests are served together?")
    if batch is not None and not (batch.isdecimal() and int(batch) > 0):
        raise BadOption(f"{batch!r} is no number of requests: answer 1 or more.")
    return Wanted(
        target=target,
        memory=memory,
        hardware=hardware,
        batch=None if batch is None else int(batch),
        goal=one_of("What has to be fast: one answer, or all of them together?", "latency", "throughput"),
        can_train=yes("Can you train something for this model?"),
        small_model=yes("Is there a smaller model with the same tokenizer?"),
        text_in_prompt=yes("Does the answer repeat what is in the prompt, as in edits and summaries?"),
        must_be_exact=yes("Does the output have to be exactly the model's own?"),
    )


def _results(folder: Path, target: str | None) -> Results:
    """What was measured, of that very target."""
    results = read(folder).results
    plan = results.manifest.get("plan")
    measured = plan.get("target") if isinstance(plan, dict) else None
    if isinstance(measured, str) and measured != target:
        raise BadOption(f"{folder} was measured with the target {measured!r}: name that one, or another folder.")
    return results


def _same_tokens(wanted: Wanted, scene: Scene | None) -> bool | None:
    """Whether the small model means the same tokens by the same ids as the target; None if there are not both."""
    if wanted.target is None or scene is None or scene.draft is None or wanted.draft_model is None:
        return True if wanted.draft_model is not None else None
    loader = Loader(offline=wanted.offline, trust_remote_code=wanted.trust_remote_code)
    target, draft = (loader.tokenizer(name).get_vocab() for name in (wanted.target, wanted.draft_model))
    try:
        shared_ids(target, draft, scene.draft.vocabulary)
    except VocabularyMismatch:
        return False
    return True


def _scene(wanted: Wanted) -> Scene | None:
    """The sizes, from configurations alone."""
    if wanted.target is None:
        return None
    given = as_dtype(wanted.dtype)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = given or (torch.bfloat16 if wanted.hardware == "gpu" else native_dtype(wanted.hardware or here))
    loader = Loader(offline=wanted.offline, trust_remote_code=wanted.trust_remote_code)
    target = Shape.of(loader.config(wanted.target), dtype, int8=wanted.int8)
    draft = None if wanted.draft_model is None else Shape.of(loader.config(wanted.draft_model), dtype)
    context = wanted.context or min(CONTEXT, target.context)
    if context > target.context:
        raise BadOption(f"--context is {context} and the model holds {target.context} tokens: take less.")
    return Scene(target, draft, (wanted.batch or 1) * context)


def _notes(wanted: Wanted, situation: Situation, scene: Scene | None, told: list[Recommendation]) -> Iterator[str]:
    """What holds besides the order."""
    if wanted.draft_model is not None and situation.small_model is False:
        yield f"{wanted.draft_model} has another tokenizer than {wanted.target}, so it can only draft as 'translated'."
    if scene is not None and situation.memory is not None:
        alone = scene.target.weights + scene.target.cache(scene.tokens)
        if alone > situation.memory:
            yield (
                f"The target alone takes {as_size(alone)}: round it with --quantize int8, or keep its weights on disk "
                "with --device-map auto, where every pass reads them and speculation gains the most."
            )
    if situation.must_be_exact is False:
        able = [r.method.name for r in told if r.ruled_out is None and DRAFTERS[r.method.drafter].has_law]
        if able:
            yield (
                f"As the output may differ, --verifier ensemble:0.7 accepts more of {', '.join(dict.fromkeys(able))}; "
                "outrider prove says by how much its law is off, and your own tasks whether that matters."
            )
    else:
        yield "The verifier match keeps the output the target's own, token for token, whatever drafts."
    if (situation.temperature or 0) > 0:
        yield "The higher the temperature, the fewer drafts are accepted: low ones keep most of the gain."
    if situation.large_batch:
        yield "With many requests at a time a pass is no longer free: look at outrider costs --batch first."
    if wanted.int8:
        yield "A target that is rounded agrees a little less with a drafter that was not made for it."
    yield (
        "The policy goodput, which is the default, stops drafting where it does not pay. Rules only say what to "
        "measure first."
    )


def _sizes(wanted: Wanted, scene: Scene | None) -> dict[str, Any] | None:
    if scene is None:
        return None
    return {
        "name": wanted.target,
        "parameters": scene.target.parameters,
        "weight_bytes": scene.target.weights,
        "cache_bytes": scene.target.cache(scene.tokens),
        "tokens_in_cache": scene.tokens,
        "mtp_layers": scene.target.mtp_layers,
    }


def _record(told: Recommendation) -> dict[str, Any]:
    """For JSON."""
    measured = told.measured
    return {
        "method": told.method.name,
        "drafter": told.spec,
        "what": told.method.title,
        "points": told.points,
        "for": list(told.speaks_for),
        "against": list(told.speaks_against),
        "remark": told.method.remark or None,
        "ruled_out": told.ruled_out,
        "memory_bytes": told.memory,
        "total_bytes": told.total,
        "memory": told.method.adds,
        "measured": None if measured is None else {f.name: getattr(measured, f.name) for f in fields(measured)},
        "commands": list(told.commands),
    }


def _show(told: list[Recommendation], scene: Scene | None, notes: list[str]) -> None:
    console = Console(highlight=False)
    able = [one for one in told if one.ruled_out is None]
    grid = Table(title="What to draft with", title_justify="left")
    for name in ("", "drafter", "what it drafts", "memory it adds", "measured" if _any_measured(told) else "points"):
        grid.add_column(name, justify="right" if name in ("", "points") else "left", overflow="fold")
    for place, one in enumerate(able, 1):
        size = one.method.adds if one.memory is None else as_size(one.memory) if one.memory else "none"
        last = _speed(one.measured) if _any_measured(told) else str(one.points)
        grid.add_row(str(place), escape(one.spec), one.method.title, size, last)
    console.print(grid)
    for place, one in enumerate(able[:_SHOWN], 1):
        console.print(f"[bold]{place}. {escape(one.spec)}[/bold]")
        remark = (one.method.remark,) if one.method.remark else ()
        for sign, reasons in (("+", one.speaks_for), ("−", one.speaks_against), ("·", remark)):
            for reason in reasons:
                console.print(f"   {sign} {escape(reason)}")
        for command in one.commands:
            console.print(f"   $ {command}", style="cyan", markup=False, soft_wrap=True)
    out = [one for one in told if one.ruled_out is not None]
    if out:
        console.print("[bold]Ruled out[/bold]")
        for one in out:
            console.print(f"   {escape(one.spec)}: {one.ruled_out}")
    if scene is not None:
        target = scene.target
        console.print(
            f"The target: {target.parameters / 1e9:.3g} billion parameters, {as_size(target.weights)} of weights, "
            f"{as_size(target.cache(scene.tokens))} of keys and values for {scene.tokens} tokens.",
            style="dim",
        )
    for note in notes:
        console.print(note, style="dim")


def _any_measured(told: list[Recommendation]) -> bool:
    return any(one.measured is not None for one in told)


def _speed(measured: Measured | None) -> str:
    if measured is None:
        return "not measured"
    between = "" if measured.low is None else f" ({measured.low:.2f} to {measured.high:.2f})"
    return f"{measured.speed:.2f} times plain{between}, {measured.verdict or 'no verdict'}"
