"""What was run, in figures that are computed by hand; and what recorded rounds say of time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.measure.results import Case, RoundFigures, Sample
from outrider.tune.recording import _timings
from outrider.tune.validation import answers, error, measured

PLAIN, FAST = Case(drafter="none", batch=2), Case(drafter="suffix", policy="fixed:3", k=3, batch=2)


def sample(case: int, prompt: str, rounds: Sequence[tuple[int, float, int]], ids: tuple[int, ...] = (1, 2)) -> Sample:
    """An answer of rounds with so many tokens, at so many seconds, in a pass of so many rows."""
    figures = tuple(
        RoundFigures(
            drafted=3, depth=3, accepted=tokens - 1, tokens=tokens, at=at, draft_seconds=0.01, verify_seconds=0.1,
            verdict_seconds=0.0, rows=rows, nodes=4 * rows,
        )
        for tokens, at, rows in rounds
    )  # fmt: skip
    return Sample(
        case=case, prompt=prompt, category="c", repeat=0, prompt_tokens=10, seconds=rounds[-1][1], rounds=figures,
        arrivals=(), ids=ids, text="", finish_reason="length", seed=0, group=0,
    )  # fmt: skip


def test_by_hand() -> None:
    """Plain: 2 tokens in 0.4 s for each row. Speculative: 3 + 2 in 0.4 s, and 1 + 2 in 0.4 s."""
    samples = [
        sample(0, "a", [(1, 1.0, 2), (1, 1.2, 2), (1, 1.4, 2)]),
        sample(0, "b", [(1, 1.0, 2), (1, 1.2, 2), (1, 1.4, 2)]),
        sample(1, "a", [(4, 2.0, 2), (3, 2.2, 2), (2, 2.4, 2)]),
        sample(1, "b", [(4, 2.0, 2), (1, 2.2, 2), (2, 2.4, 2)], ids=(1, 3)),
    ]
    found = measured({0: PLAIN, 1: FAST}, samples)
    alone, fast = found[0], found[1]
    assert (alone.per_user, alone.throughput) == (pytest.approx(5), pytest.approx(10))
    assert (alone.speedup, alone.interval, alone.identical) == (1, None, None)
    assert fast.per_user == pytest.approx(8 / 0.8)
    assert fast.speedup == pytest.approx(2)
    assert fast.tokens == pytest.approx(2)
    assert fast.interval is None, "both prompts were served together, so one fate is all that is known"
    assert (fast.identical, fast.compared, fast.different) == (1, 2, 1)
    assert fast.value("latency") == fast.per_user and fast.value("throughput") == fast.throughput


def test_a_row_that_is_missing_and_a_first_round_do_not_count() -> None:
    """The other row has ended before the last round, which took no time."""
    samples = [
        sample(0, "a", [(1, 1.0, 2), (1, 1.2, 2), (1, 1.2001, 1)]),
        sample(1, "a", [(4, 9.0, 2), (2, 9.2, 2), (4, 9.2001, 1)]),
    ]
    found = measured({0: PLAIN, 1: FAST}, samples)
    assert found[0].per_user == pytest.approx(5)
    assert found[1].per_user == pytest.approx(10)


def test_what_cannot_be_compared_is_left_out() -> None:
    """Another prompt than plain decoding's, or nothing at all, as after Ctrl-C."""
    samples = [sample(0, "a", [(1, 1.0, 2), (1, 1.2, 2)]), sample(1, "b", [(1, 1.0, 2), (1, 1.2, 2)])]
    assert set(measured({0: PLAIN, 1: FAST}, samples)) == {0}
    assert measured({0: PLAIN, 1: FAST}, []) == {}


def test_intervals_are_over_prompts() -> None:
    """Alone, one prompt twice as fast and one four times: something between."""
    cases = {0: PLAIN.model_copy(update={"batch": 1}), 1: FAST.model_copy(update={"batch": 1})}
    samples = [
        part.model_copy(update={"group": None})
        for prompt, tokens in (("a", 2), ("b", 4), ("c", 4))
        for part in (
            sample(0, prompt, [(1, 1.0, 1), (1, 1.2, 1)]),
            sample(1, prompt, [(1, 1.0, 1), (tokens, 1.2, 1)]),
        )
    ]
    interval = measured(cases, samples)[1].interval
    assert interval is not None
    assert interval.low == pytest.approx(2) and interval.high == pytest.approx(4)
    assert measured(cases, samples)[1].verdict == "faster"


def test_answers_that_will_be_told() -> None:
    """Of five prompts two batches of two."""
    assert answers([PLAIN, FAST, Case(drafter="none")], prompts=5, repeats=2) == 2 * (4 + 4 + 5)


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert error(1.1, 1.0) == pytest.approx(0.1)
    assert error(0.9, 1.0) == pytest.approx(-0.1)


def test_recorded_times() -> None:
    """The first round's beginning is not known. Behind a prompt of ten tokens, one of which was pending, stand those
    that were committed."""
    first, second = _timings(sample(0, "a", [(4, 1.0, 1), (3, 1.2, 1), (2, 1.5, 1)]))
    assert (first.nodes, first.context, second.context) == (4, 13, 16)
    assert first[2:] == pytest.approx((0.01, 0.1, 0.09))
    assert second.other == pytest.approx(0.19)
