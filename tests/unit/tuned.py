"""Tuning in figures that are made up: costs, recordings, and what is found in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.measure.costs import Cost, Costs
from outrider.measure.recorded import Answer, Drafted, Recording
from outrider.measure.shapes import Shape
from outrider.tune.prices import Level, Passes, Prices
from outrider.tune.search import Prediction, Recorded, Setting, predict

CHAINS = [Shape.chain(k) for k in range(1, 9)]
EXACT = Level(verify=1.0, draft=0.0, other=0.0)
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 65, 129)


def passes(
    seconds: Callable[[int, int], float], batches: Sequence[int] = (1,), contexts: Sequence[int] = (100,)
) -> Passes:
    """A pass over `nodes` tokens altogether with a context takes `seconds(nodes, context)`."""
    return Passes(
        Costs(
            tuple(
                Cost(width, batch, context, seconds(width * batch, context), ())
                for batch in batches
                for context in contexts
                for width in WIDTHS
            ),
            0,
            1.0,
            None,
            0,
        )
    )


def flat_to(knee: int, base: float = 1.0, slope: float = 0.25) -> Callable[[int, int], float]:
    """Free up to the knee, then dearer by `slope` a token."""
    return lambda nodes, context: base + slope * max(0, nodes - knee)


def chain(accepted: Sequence[int], k: int = 8) -> Recording:
    """Rounds with drafts of k tokens of which so many were accepted, over and over."""
    draft = tuple(range(-1, k))
    rounds = [Drafted(draft, tuple(range(kept + 1)), kept + 1, tuple(range(k + 1))) for kept in accepted]
    return Recording(Shape.chain(k), (Answer(tuple(rounds), cut=False),))


def search(
    drafters: dict[str, tuple[Recording, float]], curve: Passes, batches: Sequence[int] = (1,)
) -> tuple[list[Recorded], Prices, list[Prediction]]:
    """What was recorded of drafters with a recording and seconds per drafted token, its prices, and predictions."""
    asked = {name: recording.asked for name, (recording, _) in drafters.items()}
    drafts = {
        (name, shape, batch): dear * shape.depth + 1e-12
        for name, (_, dear) in drafters.items()
        for shape in [*CHAINS, asked[name]]
        for batch in {1, *batches}
    }
    recorded = [
        Recorded(name, recording, Level(1.0, dear * recording.asked.depth, 0.0))
        for name, (recording, dear) in drafters.items()
    ]
    prices = Prices(curve, drafts, 100)
    return recorded, prices, predict(EXACT, recorded, prices, CHAINS, batches)


def searched(
    drafters: dict[str, tuple[Recording, float]], curve: Passes, batches: Sequence[int] = (1,)
) -> list[Prediction]:
    """The predictions alone."""
    return search(drafters, curve, batches)[2]


def of(predictions: Sequence[Prediction], drafter: str, k: int, batch: int = 1) -> Prediction:
    """The one with this setting."""
    (found,) = [one for one in predictions if one.setting == Setting(drafter, Shape.chain(k), batch)]
    return found
