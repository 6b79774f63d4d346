"""`outrider tree`: Medusa's static tree, from what its heads get right on answers that they were not trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import checkpoints
from ..api import Outrider
from ..checkpoints import CARD, Checkpoint
from ..drafters.medusa import Medusa, search_ranks
from ..drafters.trained import identify
from ..errors import BadOption
from ..train.answers import Answer, read_source
from ..train.corpus import Batch, OnlineFeatures, collate, usable
from ..train.medusa import accuracies
from .settings import Settings
from .showing import progress_bar, versions
from .train import Setup, answers_of, measure, spread

Ranks = tuple[tuple[int, ...], ...]
_METHOD = "medusa"
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # nodes for which the expectation is told


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        folder: of the heads.
        data: folders of answers.
        nodes, width: of the tree, and ranks of each head that may stand in it.
        longest: tokens of prompt and answer that are used.
        prompts: held-out ones for real acceptance.
        dry: leave the folder as it is.
    """

    folder: Path
    data: tuple[Path, ...]
    nodes: int
    width: int
    longest: int
    prompts: int
    dry: bool


def run(settings: Settings, asked: Wanted, *, show: bool) -> dict[str, Any]:
    """Measure, search, keep, and measure by the decode loop what it is worth; the document is what `--json` prints."""
    sources = [read_source(path) for path in asked.data]
    llm = settings.load()
    target = identify(llm.target, settings.target)
    every = [a for source, path in zip(sources, asked.data, strict=True) for a in answers_of(path, source, llm, target)]
    held = usable(every, asked.longest, held_out=True)
    if not held:
        raise BadOption(f"No answer in {asked.data[-1]} is held out, so nothing can be measured: make more data.")
    checkpoint = checkpoints.read(asked.folder, _METHOD)
    drafter = llm.drafter
    assert isinstance(drafter, Medusa)
    ids = checkpoint.ids.to(llm.target.device)
    accuracy, places = accuracies(drafter.head, ids, _batches(llm, held, show), asked.width)
    ranks = search_ranks(accuracy, asked.nodes)
    if not ranks:
        raise BadOption(f"The heads in {asked.folder} were never right on {places} tokens: train them longer first.")
    before = drafter.head.shape.ranks
    if not asked.dry:
        _keep(asked.folder, checkpoint, ranks, {"nodes": len(ranks), "answers": len(held), "tokens": places})
    prompts = spread([answer for answer in every if answer.held_out], asked.prompts)
    found = {
        "out": None if asked.dry else str(asked.folder),
        "answers": len(held),
        "tokens": places,
        "accuracy": accuracy,
        "ranks": [list(path) for path in ranks],
        "changed": ranks != before,
        "expected": expected(accuracy, ranks),
        "measured": _measured(llm, drafter, ranks, prompts),
        **versions(),
    }
    if show:
        _show(found, asked)
    return found


def expected(accuracy: Sequence[Sequence[float]], ranks: Ranks) -> dict[str, float]:
    """Tokens per round that the first n nodes promise if heads err independently, by n; the target's own counts."""
    worths = [prod(accuracy[level][rank] for level, rank in enumerate(path)) for path in ranks]
    sums = list(accumulate(worths, initial=1.0))
    return {str(size): sums[size] for size in sorted({*_SIZES, len(ranks)}) if size <= len(ranks)}


def _batches(llm: Outrider, answers: Sequence[Answer], show: bool) -> list[Batch]:
    """The answers one by one, with the target's last states in the precision of the heads."""
    states, found = OnlineFeatures(llm.target, llm.drafter.taps), []
    with progress_bar("reading", len(answers) if show else 0) as advance:
        for answer in answers:
            batch = collate([answer], states)
            found.append(replace(batch, last=batch.last.to(llm.target.dtype)))
            advance()
    return found


def _keep(folder: Path, checkpoint: Checkpoint, ranks: Ranks, facts: dict[str, Any]) -> None:
    """Write the folder anew with this tree."""
    manifest = checkpoint.manifest
    update = {"shape": {**manifest.shape, "ranks": ranks}, "training": {**manifest.training, "tree": facts}}
    card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    checkpoints.write(folder, replace(checkpoint, manifest=manifest.model_copy(update=update)), card)


def _measured(llm: Outrider, drafter: Medusa, ranks: Ranks, prompts: Sequence[Answer]) -> dict[str, float | None]:
    """Acceptance lengths by the decode loop: of chains, and of trees as large as this one, the one before and this."""
    depth = drafter.head.shape.heads
    cases = {"chain": (drafter, 0), "before": (drafter, len(ranks)), "tree": (drafter.shaped(ranks), len(ranks))}
    return {
        name: measure(llm, one, prompts, Setup(), depth, nodes).acceptance_length
        for name, (one, nodes) in cases.items()
    }


def _show(found: dict[str, Any], asked: Wanted) -> None:
    screen = Console(highlight=False)
    accuracy = found["accuracy"]
    table = Table("head", *(f"{rank + 1}." for rank in range(len(accuracy[0]))), "nodes")
    levels = Counter(len(path) for path in found["ranks"])
    for level, shares in enumerate(accuracy):
        table.add_row(str(level + 1), *(f"{share:.1%}" for share in shares), str(levels[level + 1]))
    screen.print(f"How often each head's likeliest tokens were right, on {found['tokens']} held-out tokens:")
    screen.print(table)
    sizes = ", ".join(f"{size}: {value:.2f}" for size, value in found["expected"].items())
    screen.print(f"tokens per round expected, by nodes: {sizes}")
    lengths = {name: "unknown" if value is None else f"{value:.2f}" for name, value in found["measured"].items()}
    screen.print(
        f"acceptance length, measured: {lengths['chain']} of chains, {lengths['tree']} of this tree "
        f"({lengths['before']} of the one before)"
    )
    screen.print("nothing was written" if asked.dry else f"{asked.folder}: {len(found['ranks'])} nodes")
