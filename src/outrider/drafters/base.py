"""What a drafter looks like. Drafters never see the verifier or the policy, only how much they may propose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BadOption
from ..kv import Seat
from ..sampling import Sampling
from ..target import Target
from ..types import UNBOUNDED, Budget, Draft, Noise, Scores


@dataclass(frozen=True, slots=True)
class Setting:
    """What a drafter may use while it is being made.

    Attributes:
        target: the model it will draft for.
        tokenizer: the target's, or None.
        load_model: a model spec -> (its `Target`, its tokenizer), as the target itself was loaded.
        folder: where the target's files lie, or None if it was made in memory.
    """

    target: Target
    tokenizer: Any
    load_model: Callable[[str], tuple[Target, Any]]
    folder: Path | None = None


class Drafter(ABC):
    """Proposes tokens. All that changes lives in the state of a request, never in the drafter.

    What a drafter learns of requests that have ended (see `end`) may influence drafts, and nothing else.

    Attributes:
        taps: target layers whose hidden states `begin` and `commit` are to be shown.
        spec: how it names itself in reports.
        note: what its user should know of it, in one sentence; empty where there is nothing to say.
        has_law: it draws from probabilities: its drafts bring them (`Draft.probs`) when they were sampled, and whenever
            `Budget.law` asks; it asks `Budget.stop` after each token.
        makes_trees: it spends `Budget.nodes` on branches where there are more of them than depth, and never otherwise
            unless it branches always.
        always_branches: it makes trees whatever the budget, so rules for chains do not serve it.
        reencodes: its drafts pass through text from another vocabulary, where no law survives; never with `has_law`.
        learns: it drafts from what requests that have ended wrote.
        from_text: its drafts follow from the tokens of prompts and outputs alone, without a model of its own and
            without the target's scores, so that recorded answers are enough to know them.
        reads: it has a model that reads a request's whole text before its first draft, no more of it at a time than
            `Budget.reading` says; until then its drafts are empty. `Draft.read` tells what it read.
        for_encoders: it drafts for encoder-decoder targets too, whose prompt is in another place (`Seat.encoded`).

    By `has_law` to `reencodes`, combinations that cannot work are refused before anything is loaded. The class says
    what the kind may do; an instance may say less once it knows.
    """

    taps: tuple[int, ...] = ()
    spec: str = ""
    note: str = ""
    has_law: bool = False
    makes_trees: bool = False
    always_branches: bool = False
    reencodes: bool = False
    learns: bool = False
    from_text: bool = False
    reads: bool = False
    for_encoders: bool = False

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Drafter:
        """Make one from what stands behind the colon of its spec; this one takes nothing.

        Raises:
            BadOption: the argument cannot be used.
        """
        if argument:
            raise BadOption(f"This drafter takes no argument, {argument!r} was given: leave it out.")
        return cls()

    @abstractmethod
    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> Any:
        """A state for a new request.

        Args:
            prompt: its ids; the last one is pending.
            hidden: tapped layer -> [len(prompt) - 1, D], the target's states at all prompt tokens but the last;
                empty without taps or for a prompt of one token.
        """

    @abstractmethod
    def propose(
        self,
        states: Sequence[Any],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """One draft per state, node 0 its pending token, within its budget (depth 0: nothing but node 0).

        A tree's nodes stand in the order of what they are worth, where the drafter can tell: the first n of them that
        lie no deeper than d are then what a budget of n nodes and depth d would have brought, which `tune` reads off.

        It may be called again before `commit`, for another draft in the place of the first.
        """

    @abstractmethod
    def commit(self, state: Any, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """Take note of what was committed. The draft may have been another drafter's (see `cascade`).

        Args:
            state: of the request.
            tokens: committed in this round, in order; the last one is pending now.
            scores: the target's, at every node of the draft; `scores.at(path)` has one row per committed token.
            path: the nodes that were kept, node 0 first: `tokens[i]` followed node `path[i]`.
        """

    def seated(self, state: Any, seat: Seat) -> None:  # noqa: B027
        """Told once, right after `begin`, where the target keeps the request's keys, and what its encoder made of the
        source. When `propose` is called, all rows of a batch sit in one cache. Only drafters that run the target's own
        layers, or look at the source, need to know."""

    def check_prediction(self, prediction: Sequence[int]) -> None:
        """Refuse what a request says of the text it expects (nothing, mostly), before any work. This one has no use
        for a prediction.

        Raises:
            BadOption: with the remedy.
        """
        if prediction:
            raise BadOption(
                f"The drafter {self.spec!r} has no use for a prediction: leave it out, or take the drafter 'reference'."
            )

    def expect(self, state: Any, prediction: Sequence[int]) -> None:
        """Take note of the text that the caller expects. Called once, after `begin`, and only if there is one."""
        self.check_prediction(prediction)

    def end(self, state: Any) -> None:  # noqa: B027 - most drafters hold nothing
        """Release what a state holds: its request has finished or was removed. Called once, and last."""

    def forget(self) -> None:  # noqa: B027 - most drafters learn nothing
        """Drop what it learned of requests that have ended; what it was made with stays. No request is under way."""

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values that a request's state holds per token of its text; 0 without a model."""
        return 0

    def room(self, state: Any) -> int:
        """How many tokens this drafter can still propose for a request before its own context is full."""
        return UNBOUNDED
