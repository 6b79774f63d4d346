"""What a drafter would have done to answers that are written already: the one loop, on a target that knows the text.

A lossless rule changes no token, so a recorded answer is all that the target would have said, and drafts that follow
from the text alone can be judged without any model. The target of a replay gives the recorded next token all its mass;
loop, drafter, rule and policy are the real ones, and so are the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import combinations
from .. import tree as trees
from ..drafters import DRAFTERS, Drafter, Setting, drafter_class, make_drafter
from ..engine import Engine
from ..errors import BadOption
from ..kv import KVCache
from ..policy import Maker, make_policy
from ..policy import Setting as PolicySetting
from ..target import Target
from ..types import UNBOUNDED, Round, Scores, Tree
from ..verify.match import Match
from .logs import Answer


class ReplayTarget:
    """A `Target` that says what was recorded, whatever is drafted.

    Args:
        vocabulary: ids there are.
    """

    exactness, build = "bits", "replay"
    device, dtype = torch.device("cpu"), torch.float32
    context, pass_bytes = UNBOUNDED, 0

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.eos: tuple[int, ...] = ()
        self._texts: Sequence[Sequence[int]] = ()

    def follow(self, answers: Sequence[Answer]) -> None:
        """What the rows of the next pass are about, in their order."""
        self._texts = [(*answer.prompt, *answer.output) for answer in answers]

    def new_cache(self, rows: int = 1, capacity: int = 0) -> KVCache:
        """See `Target`; nothing but lengths will be in it."""
        return KVCache(rows, 1)

    def forward(
        self, trees_: Sequence[Tree], cache: KVCache, *, taps: tuple[int, ...] = (), last_only: bool = False
    ) -> list[Scores]:
        """See `Target`; a node's place alone decides. Nobody looks at what comes of reading a prompt."""
        if last_only:
            return [Scores(torch.zeros(1, self.vocabulary, dtype=torch.int8)) for _ in trees_]
        return [
            self._scores(text, length + 1 + trees.depths(tree.parents))
            for text, length, tree in zip(self._texts, cache.lengths, trees_, strict=True)
        ]

    def _scores(self, text: Sequence[int], places: torch.Tensor) -> Scores:
        """Behind the end of the text nothing is committed, so it does not matter what is said there."""
        logits = torch.zeros(len(places), self.vocabulary, dtype=torch.int8)  # wide, and looked at once: so it is small
        following = [text[min(place, len(text) - 1)] for place in places.tolist()]
        logits[torch.arange(len(places)), torch.tensor(following)] = 1
        return Scores(logits)


def drafter_for(spec: str, vocabulary: int, tokenizer: Any = None) -> Drafter:
    """A drafter that a replay can serve.

    Raises:
        BadOption: it needs more than the text, or its spec is wrong.
    """
    if not drafter_class(spec).from_text:
        raise _more_than_text(spec)

    def refuse(name: str) -> tuple[Target, Any]:
        raise _more_than_text(spec)

    drafter = make_drafter(spec, Setting(ReplayTarget(vocabulary), tokenizer, refuse, Path()))
    if not drafter.from_text:
        raise _more_than_text(spec)
    return drafter


def policy_for(spec: str, drafter: Drafter) -> Maker:
    """A policy for it.

    Raises:
        BadOption: it would change nothing, or does not go with the drafter.
    """
    maker = make_policy(spec, PolicySetting(drafter.spec, drafter.has_law, drafter.makes_trees))
    combinations.check(Match(), drafter, drafter.spec, maker().budget())
    return maker


def replay(
    answers: Sequence[Answer],
    drafter: Drafter,
    policy: Maker,
    vocabulary: int,
    *,
    together: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> list[Round]:
    """The rounds in which these answers would have been written.

    Args:
        answers: in their order, which matters to drafters that learn from finished ones.
        drafter: a fresh one, from `drafter_for`.
        policy: from `policy_for`.
        vocabulary: ids there are.
        together: how many are served together.
        advance: called after each answer.

    Raises:
        BadOption: the drafter wants a prediction and an answer has none, or the other way round.
    """
    target, rounds = ReplayTarget(vocabulary), list[Round]()
    for first in range(0, len(answers), together):
        group = answers[first : first + together]
        engine = Engine(target, drafter, Match(), policy)
        for answer in group:
            target.eos = answer.ends
            engine.add(answer.request())
        while rows := engine.active:
            target.follow([group[row.index] for row in rows])
            for _, round_ in engine.step():
                rounds.append(round_)
                if round_.finish:
                    advance()
            for row in rows:
                if row.error is not None:
                    raise row.error
    return rounds


def _more_than_text(spec: str) -> BadOption:
    able = ", ".join(name for name, kind in DRAFTERS.items() if kind.from_text and name != "none")
    return BadOption(
        f"The drafter {spec!r} looks at more than the text (a model of its own, or the target's scores), which a log "
        f"does not have: choose among {able}, or measure it with the model."
    )
