"""Which drafter and which policy a request gets. Knows the parts that the server was started with, no HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..api import Outrider
from ..drafters import Drafter
from ..drafters.none import NoDrafter
from ..errors import BadOption
from ..policy import DEFAULT, Fixed, Maker
from .room import drafter_bytes

PLAIN = "none"
REFERENCE = "reference"
MOST_NODES = 128  # tokens that a request may ask to be drafted in a round


@dataclass(frozen=True, slots=True)
class Choice:
    """How to draft for one request.

    Attributes:
        drafter: the drafter itself.
        name, policy: as they are reported.
        make_policy: gives the request its policy.
        token_bytes: that the drafter costs per token of the request, see `room.drafter_bytes`.
    """

    drafter: Drafter
    name: str
    policy: str
    make_policy: Maker
    token_bytes: int = 0


class Choices:
    """What requests may choose from.

    Args:
        llms: one target with each drafter that may be asked for, the usual one first.

    Raises:
        BadOption: they differ in more than the drafter.
    """

    def __init__(self, llms: Sequence[Outrider]) -> None:
        if len({(id(llm.target), llm.verifier.spec) for llm in llms}) != 1:
            raise BadOption("A server has one target and one rule: make the other drafters with using(drafter=...).")
        self._offers = [_Offer(llm) for llm in llms]
        self.usual = self._offers[0].name
        self._why_no_reference = ""
        self._reference: _Offer | None = None
        try:
            self._reference = _Offer(_following(llms[0]))
        except BadOption as error:
            self._why_no_reference = str(error)

    @property
    def names(self) -> list[str]:
        """What `drafter` may say; "reference" follows from a prediction."""
        return list(dict.fromkeys([*(offer.name for offer in self._offers), PLAIN]))

    def pick(self, drafter: str | None, policy: str | None, *, predicted: bool) -> Choice:
        """The drafter and the policy of a request.

        Args:
            drafter, policy: as the request says, or None.
            predicted: it brings a prediction, so a drafter that follows one is the usual one.

        Raises:
            BadOption: there is no such drafter here, or no such policy for it.
        """
        if drafter == PLAIN or (drafter is None and not predicted and self.usual == PLAIN):
            if policy is not None:
                raise BadOption("The drafter 'none' drafts nothing, so a policy would change nothing: leave it out.")
            return Choice(NoDrafter(), PLAIN, PLAIN, lambda: Fixed(0))
        if drafter is None and predicted:
            if self._reference is None:
                raise BadOption(self._why_no_reference)
            return self._reference.choice(policy)
        asked = self.usual if drafter is None else drafter
        found = next((offer for offer in self._offers if asked in offer.names), None)
        if found is None:
            offered = ", ".join(repr(offered) for offered in self.names)
            raise BadOption(f"This server does not draft with that: choose one of {offered}.")
        return found.choice(policy)


class _Offer:
    """A drafter with its policies. Those without arguments are made once, for their requests learn from each other."""

    def __init__(self, llm: Outrider) -> None:
        self._llm = llm
        self._makers: dict[str, Maker] = {}
        self._token_bytes = drafter_bytes(llm.drafter, llm.target)
        self.name = label(llm.drafter.spec)
        self.names = {self.name, llm.drafter.spec, llm.asked_drafter, label(llm.asked_drafter)}

    def choice(self, policy: str | None) -> Choice:
        """This drafter, with the policy that is wanted."""
        name = self._llm.configuration["policy"] if policy is None else policy
        return Choice(self._llm.drafter, self.name, name, self._maker(policy), self._token_bytes)

    def _maker(self, policy: str | None) -> Maker:
        if policy is None:
            return self._llm.policies()
        if policy in self._makers:
            return self._makers[policy]
        maker = self._llm.policies(policy)
        if ":" not in policy:
            return self._makers.setdefault(policy, maker)
        if (nodes := maker().budget().nodes) > MOST_NODES:
            raise BadOption(f"The policy drafts up to {nodes} tokens a round: {MOST_NODES} are allowed here.")
        return maker


def label(spec: str) -> str:
    """A spec as strangers may see it: of paths only the last part."""
    parts = re.split(r"([:,=])", spec)
    return "".join(Path(part).name if part.startswith(("/", ".", "~")) else part for part in parts)


def _following(llm: Outrider) -> Outrider:
    """The same target with a drafter that follows predictions, under the server's policy where that goes with it."""
    try:
        return llm.using(drafter=REFERENCE)
    except BadOption:
        return llm.using(drafter=REFERENCE, policy=DEFAULT)
