"""Where outputs part and what counts as a tie: by hand, greedy and sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from toy import Table, ToyTarget

from outrider.measure.divergence import first_difference, judge
from outrider.measure.rounding import left_open, moved, other_logits, plain_logits
from outrider.noise import SeededNoise
from outrider.row import Request
from outrider.sampling import Sampling

PROMPT = (1, 2)


def request(**sampling: float) -> Request:
    """After the prompt, with seed 3."""
    return Request(PROMPT, Sampling(**sampling), 3, 8)


def logits(values: Sequence[float]) -> torch.Tensor:
    """A model's, whatever it has read."""
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("one", "other", "place"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0)]
)
def test_first_difference(one: list[int], other: list[int], place: int | None) -> None:
    assert first_difference(one, other) == place


@pytest.mark.parametrize(("logit", "expected"), [(20.0, 16), (1.0, 1), (-3.0, 2), (0.3, 0.25)])
def test_rounding_is_two_units_in_the_last_place_at_least(logit: float, expected: float) -> None:
    for by in (0.0, 2**-9 * expected):
        assert left_open(logit, by, torch.bfloat16) == 2 * 2**-7 * expected


def test_rounding_is_twice_what_was_measured() -> None:
    """Until more than half of the digits are lost: of bfloat16 at a height of 16 these are 1.41."""
    for by in (0.2, 1.0, 1.4):
        assert left_open(20.0, by, torch.bfloat16) == 2 * by
    assert left_open(20.0, 1.5, torch.bfloat16) == 0.25
    assert left_open(20.0, 1e-4, torch.float32) == 2e-4
    assert left_open(20.0, 1e-2, torch.float32) == 2 * 2**-23 * 16


def test_what_moved_is_the_largest_difference() -> None:
    first = logits([1.0, 2.0, 3.0])
    assert moved(first, []) == 0.0
    assert moved(first, [logits([1.0, 2.5, 3.0]), logits([1.25, 2.0, 2.875])]) == 0.5


@pytest.mark.parametrize(
    ("values", "dtype", "exact", "verdict"),
    [
        ([20.0, 19.8, 0.0], torch.bfloat16, False, "tie"),
        ([20.0, 19.75, 0.0], torch.bfloat16, False, "tie"),  # a gap of just the rounding
        ([20.0, 19.7, 0.0], torch.bfloat16, False, "fault"),
        ([20.0, 19.8, 0.0], torch.float32, False, "fault"),
        ([20.0, 19.8, 0.0], torch.bfloat16, True, "fault"),  # the same bits were promised
        ([19.8, 19.9, 20.0], torch.bfloat16, False, "tie"),  # a third token is the likeliest
        ([19.8, 19.0, 20.0], torch.bfloat16, False, "fault"),
    ],
)
def test_greedy(values: list[float], dtype: torch.dtype, exact: bool, verdict: str) -> None:
    told = judge(request(), [5, 0, 9], [5, 1, 9], lambda ids: logits(values), dtype, exact=exact)
    assert told is not None
    assert (told.place, told.expected, told.got, told.verdict) == (1, 0, 1, verdict)
    assert (told.expected_logit, told.got_logit) == pytest.approx((values[0], values[1]))
    assert told.top2_gap == pytest.approx(sorted(values)[-1] - sorted(values)[-2], abs=1e-5)
    assert told.gap == pytest.approx(max(values) - min(values[:2]), abs=1e-5)


@pytest.mark.parametrize(
    ("by", "exact", "verdict"),
    [(0.0, False, "fault"), (0.2, False, "fault"), (0.3, False, "tie"), (3.0, False, "fault"), (0.3, True, "fault")],
)
def test_a_gap_within_what_was_measured_is_a_tie(by: float, exact: bool, verdict: str) -> None:
    """A gap of 0.5 in bfloat16, where two roundings are 0.25. What differs wildly is no rounding, and where the same
    bits were promised nobody measures."""
    values, seen = [20.0, 19.5, 0.0], []

    def again(ids: Sequence[int]) -> torch.Tensor:
        seen.append(ids)
        return logits([20.0, 19.5, by])

    told = judge(request(), [0], [1], lambda ids: logits(values), torch.bfloat16, again=(again,), exact=exact)
    assert told is not None
    assert (told.verdict, len(seen)) == (verdict, 0 if exact else 1)
    assert told.rounding == pytest.approx(2 * by if 0.125 < by < 1 and not exact else 0.25)


def test_the_common_text_is_what_is_read() -> None:
    seen: list[list[int]] = []

    def read(ids: Sequence[int]) -> torch.Tensor:
        seen.append(list(ids))
        return logits([0.0, 1.0, 2.0])

    judge(request(), [5, 6, 0], [5, 6, 1], read, torch.float32)
    assert seen == [[*PROMPT, 5, 6]]


def test_an_output_that_merely_stops_is_a_fault() -> None:
    told = judge(request(), [5, 0], [5], lambda ids: logits([1.0, 1.0]), torch.bfloat16)
    assert told is not None
    assert (told.got, told.got_logit, told.gap, told.verdict) == (None, None, math.inf, "fault")


def test_equal_outputs_need_no_opinion() -> None:
    assert judge(request(), [5, 0], [5, 0], lambda ids: 1 / 0, torch.float32) is None  # type: ignore[arg-type, return-value]


def test_sampled_gaps_are_those_of_the_race() -> None:
    """What is drawn is the argmax of logit / T + Gumbel noise; the gap is what the loser lacks there, times T."""
    values, temperature = torch.tensor([1.0, 0.6, 0.2, -0.5]), 0.7
    asked = request(temperature=temperature)
    noise = SeededNoise.for_verifier(asked.seed, 0)
    probs = (values / temperature).softmax(-1)
    right = noise.draws(probs[None], [len(PROMPT)])[0]
    for other in {0, 1, 2, 3} - {right}:
        told = judge(asked, [right], [other], lambda ids: values, torch.float32)
        assert told is not None
        raised = values.clone()
        for by, drawn in ((told.gap * 1.001, other), (told.gap * 0.999, right)):
            raised[other] = values[other] + by
            assert noise.draws((raised / temperature).softmax(-1)[None], [len(PROMPT)])[0] == drawn
        assert told.verdict == "fault"
        near = values.clone()
        near[other] += told.gap - 1e-8
        tie = judge(asked, [right], [other], lambda ids, near=near: near, torch.float32)
        assert tie is not None
        assert tie.verdict == "tie"


def test_a_token_beyond_the_border_of_top_k_can_be_a_tie() -> None:
    """Rounding may move a token over the border: what counts is how far its logit is from being drawn."""
    values = torch.tensor([2.0, 1.0, 1.0 - 1e-8])
    asked = request(temperature=1.0, top_k=2)
    probs = torch.tensor([2.0, -math.inf, 1.0]).softmax(-1)
    drawn = SeededNoise.for_verifier(asked.seed, 0).draws(probs[None], [len(PROMPT)])[0]
    told = judge(asked, [0 if drawn else 1], [2 if drawn else 1], lambda ids: values, torch.float32)
    assert told is not None
    assert told.gap < math.inf


def test_plain_logits_are_the_models() -> None:
    table = Table(5, 1)
    read = plain_logits(ToyTarget(table))
    for text in ((3,), (3, 1), (0, 1, 4, 2)):
        assert torch.equal(read(text), table.law(text).log())
        for again in other_logits(ToyTarget(table)):
            assert torch.equal(again(text), table.law(text).log())
