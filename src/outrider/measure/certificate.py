"""What a proof of losslessness consists of, and what may be concluded from it. Knows no models and no terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..stats import Stats, finite
from .chi_square import Fit
from .divergence import Divergence

SCHEMA = 1
Name = Literal["greedy", "seeded", "law", "transformers"]
Verdict = Literal["lossless", "fault", "unproven", "relaxed"]


@dataclass(frozen=True, slots=True)
class Found:
    """A divergence and where it was found.

    Attributes:
        prompt: index of the prompt.
        seed: of the sampling; None for greedy decoding.
        company: "alone" or "together", or "plain, together" for plain decoding in a batch.
        policy: under which it was drafted.
        divergence: itself.
    """

    prompt: int
    seed: int | None
    company: str
    policy: str
    divergence: Divergence

    def as_dict(self) -> dict[str, Any]:
        """For JSON; an infinite gap is null."""
        told = {name: finite(value) for name, value in asdict(self.divergence).items()}
        place = {"prompt": self.prompt, "seed": self.seed, "company": self.company, "policy": self.policy}
        return {**place, **told, "verdict": self.divergence.verdict}


@dataclass(frozen=True, slots=True)
class Control:
    """The same comparison of what is broken on purpose.

    Attributes:
        how: what was broken.
        caught: whether the comparison told.
    """

    how: str
    caught: bool


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        name: which.
        what: in words.
        compared: outputs, or texts that were counted.
        identical: outputs that were the same; None for a law.
        stats: of the rounds that wrote them; None where another check's outputs were compared.
        divergences: every output that was not the same.
        fit: of a law, how the counts compare with it; None where nothing was drafted after any prompt.
        control: None where there was nothing to break.
    """

    name: Name
    what: str
    compared: int
    identical: int | None
    stats: Stats | None
    divergences: tuple[Found, ...] = ()
    fit: Fit | None = None
    control: Control | None = None

    @property
    def faults(self) -> int:
        """Divergences that rounding does not explain, and a law that the counts do not follow."""
        wrong = sum(found.divergence.verdict == "fault" for found in self.divergences)
        return wrong + (self.fit is not None and not self.fit.fits)

    @property
    def ties(self) -> int:
        """Divergences that rounding explains."""
        return sum(found.divergence.verdict == "tie" for found in self.divergences)

    @property
    def lack(self) -> str | None:
        """Why passing proves nothing, if so."""
        if self.stats is not None and not self.stats.drafted:
            return "the drafter proposed nothing, so there was nothing to verify"
        if self.control is None or not self.control.caught:
            return "its negative control passed, so it could not have failed"
        return None

    @property
    def caveat(self) -> str | None:
        """What passing does not say, though it says something."""
        if self.stats is not None and self.stats.drafted and not self.stats.accepted:
            return "no draft token was accepted, so only refusals were tried"
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fit = None if self.fit is None else {**asdict(self.fit), "fits": self.fit.fits}
        return {
            "name": self.name,
            "what": self.what,
            "compared": self.compared,
            "identical": self.identical,
            "ties": self.ties,
            "faults": self.faults,
            "lack": self.lack,
            "caveat": self.caveat,
            "control": None if self.control is None else asdict(self.control),
            "fit": fit,
            "stats": None if self.stats is None else self.stats.as_dict(),
            "divergences": [found.as_dict() for found in self.divergences],
        }


@dataclass(frozen=True, slots=True)
class Bias:
    """How far a relaxed rule's output is from the target's.

    Attributes:
        stats: of sampled outputs; `mean_tv` and `mean_kl` are the bias.
        lossless: of the same requests under `match`: what acceptance would be without it.
        compared, identical: greedy outputs, and those that are plain decoding's.
        temperature: of the sampled outputs.
    """

    stats: Stats
    lossless: Stats
    compared: int
    identical: int
    temperature: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "temperature": self.temperature,
            "mean_tv": self.stats.mean_tv,
            "mean_kl": finite(self.stats.mean_kl),
            "stats": self.stats.as_dict(),
            "lossless_stats": self.lossless.as_dict(),
            "greedy_compared": self.compared,
            "greedy_identical": self.identical,
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """All checks of one run.

    Attributes:
        checks: those that were made.
        bias: of a relaxed rule, instead of checks.
        missing: what was not done, and why; a sentence each.
        notes: what a reader should know besides.
    """

    checks: tuple[Check, ...] = ()
    bias: Bias | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """What may be concluded.

        "fault": something differs that should not. "relaxed": the rule promises nothing, its bias was measured.
        "unproven": nothing was found, but a check is missing or could not have failed. "lossless": the certificate.
        """
        if any(check.faults for check in self.checks):
            return "fault"
        if self.missing:
            return "unproven"
        if self.bias is not None:
            return "relaxed"
        return "unproven" if not self.checks or any(check.lack for check in self.checks) else "lossless"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is no certificate."""
        return (*_reasons(self.checks), *self.missing)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `schema` counts up when a name changes its meaning."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "certificate": self.verdict == "lossless",
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "checks": [check.as_dict() for check in self.checks],
            "bias": None if self.bias is None else self.bias.as_dict(),
        }


def _reasons(checks: Iterable[Check]) -> Iterable[str]:
    for check in checks:
        if check.faults:
            yield (
                f"{check.name}: {check.faults} of {check.compared} differ beyond rounding"
                if (check.fit is None)
                else f"{check.name}: the counts do not follow the target's law"
            )
        elif check.lack:
            yield f"{check.name}: {check.lack}"
