"""Writes what a training run has come to: the folder, with where it comes from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import checkpoints
from ..api import Outrider
from ..checkpoints import Checkpoint, Manifest, Use
from ..drafters.trained import identify
from ..train.answers import Source
from ..train.changing import PROMISE
from ..train.corpus import Batch
from ..train.recipe import Recipe
from ..train.saving import Progress
from .showing import versions

_EARLIER = ("tokens_learnt", "answers", "data", "options", "date", checkpoints.EARLIER)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Writes a run's folder.

    Attributes:
        out: the folder.
        recipe: the method at work.
        ids: [n] int64, the draft vocabulary.
        llm: the target and its tokenizer.
        name: the target's.
        sources: of the answers.
        answers: how many are trained on.
        options: all that the run was started with.
        measured: how acceptance is.
        held_out: texts for `Recipe.settle`.
        earlier: what is known of the training of the drafter that this one goes on from; empty for a new one.
    """

    out: Path
    recipe: Recipe
    ids: Tensor
    llm: Outrider
    name: str
    sources: list[Source]
    answers: int
    options: dict[str, Any]
    measured: str
    held_out: list[Batch]
    earlier: Mapping[str, Any]

    def keep(self, progress: Progress) -> None:
        """Write what is trained as it stands."""
        recipe, latest = self.recipe, progress.curve[-1]
        recipe.settle(self.held_out)
        facts = {
            "method": recipe.method,
            "acceptance_length": latest["acceptance_length"],
            "acceptance_by_position": latest["survival"],
            "measured": self.measured,
            "step": progress.step,
            "tokens_learnt": progress.tokens,
            "answers": self.answers,
            "data": described(self.sources),
            **recipe.facts(),
            "options": self.options,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "versions": versions(),
        }
        if self.earlier:
            facts[checkpoints.EARLIER] = {name: self.earlier[name] for name in _EARLIER if name in self.earlier}
        kind, (target, drafter) = recipe.kind or recipe.method, recipe.use("FOLDER", self.name)
        manifest = Manifest(
            method=kind,
            target=identify(recipe.served(self.llm.target), target if recipe.changes else self.name),
            taps=recipe.taps,
            template=checkpoints.template_hash(self.llm.tokenizer),
            draft_vocabulary=len(self.ids),
            shape=recipe.shape,
            training=facts,
        )
        if recipe.changes:
            use = Use(f"{self.name}, changed by {recipe.method}", target, drafter, PROMISE)
        else:
            use = Use(f"{recipe.method} drafter for {self.name}", target, drafter)
        card = checkpoints.card(manifest, facts, use)
        checkpoint = Checkpoint(manifest, recipe.head.trained(), self.ids)
        checkpoints.replace_folder(self.out, lambda work: recipe.fill(work, checkpoint, card, self.llm.tokenizer))


def described(sources: Sequence[Source]) -> list[str]:
    """Which prompts were answered, those that were answered alike together."""
    return alike(
        (source.prompts, f"{source.target.name} at temperatures {', '.join(f'{t:g}' for t in source.temperatures)}")
        for source in sources
    )


def alike(answered: Iterable[tuple[str, str]]) -> list[str]:
    """Prompts, and by whom they were answered, each answerer once."""
    found: dict[str, dict[str, None]] = {}
    for prompts, who in answered:
        found.setdefault(who, {})[prompts] = None
    return [f"{'; '.join(prompts)}: answered by {who}" for who, prompts in found.items()]
