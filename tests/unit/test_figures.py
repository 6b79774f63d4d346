"""Figures of a bench against values worked out by hand: counts from scripted drafts, times from invented clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from test_runner import EOS, TEXT, prompts, scripted, toy
from toy import Scripted, Stream

from outrider.measure.figures import Batch, compared, summarise
from outrider.measure.results import Case, RoundFigures, Sample, ServerCounters, Summary
from outrider.measure.runner import run_case

PLAIN, FAST = Case(drafter="none"), Case(drafter="suffix", k=3)


def summary(samples: Sequence[Sample], case: Case = FAST) -> Summary:
    """Of samples that all belong to one case."""
    (found,) = summarise([case], samples)
    return found


def test_counts_with_the_end_of_sequence_inside_a_block() -> None:
    """Drafts 0 1 3 and 3 4 EOS 5 5 against 0 1 2 3 4 EOS: 2 of 3 kept, then 3 of 5."""
    found = summary(run_case(scripted([[0, 1, 3], [3, 4, EOS, 5, 5]]), 0, prompts(6), 20))
    assert (found.rounds, found.drafted, found.accepted, found.tokens) == (2, 8, 5, 6)
    assert (found.acceptance_rate, found.acceptance_length, found.tokens_per_pass) == (5 / 8, 3, 3)
    assert found.survival == (1, 1, 1 / 2)
    assert found.conditional == (1, 1, 1 / 2)
    assert found.lossless is True and found.mean_tv is None


def test_known_acceptance() -> None:
    """Kept 3, 0, 2, 1 of 3, 3, 2, 4 drafted, and three rounds without drafts: the target writes 0 1 2 3 0 1 2 3 ..."""
    text = (0, 1, 2, 3)
    llm = toy(Stream(8, 1, text)).using(policy="fixed:4")
    llm.drafter = Scripted([[0, 1, 2], [7, 7, 7], [1, 2], [0, 7, 2, 3], []])
    found = summary(run_case(llm, 0, prompts(6), 13))
    assert (found.rounds, found.drafted, found.accepted, found.tokens) == (7, 12, 6, 13)
    assert found.acceptance_length == (4 + 1 + 3 + 2) / 4
    assert found.acceptance_rate == 6 / 12
    assert found.survival == (3 / 4, 2 / 4, 1 / 4)
    assert found.conditional == (3 / 4, 2 / 3, 1 / 2)
    assert found.tokens_per_pass == 13 / 7


class Ragged(Scripted):
    """Drafts the whole text for a prompt of 0, wrong tokens for 1, nothing for 2."""

    def __init__(self) -> None:
        super().__init__([])

    def draft(self, state, depth, noise):  # type: ignore[no-untyped-def]
        """See `ToyDrafter`."""
        self._rounds = {0: [TEXT], 1: [[6] * 6] * 9, 2: []}[state.tokens[0]]
        return super().draft(state, depth, noise)


def test_a_ragged_batch() -> None:
    """Rows that draft, accept and end differently: all of six at once; nothing right in six; no drafts in six."""
    llm = scripted([])
    llm.drafter = Ragged()
    samples = run_case(llm, 0, prompts(0, 1, 2), 6, batch=3)
    found = summary(samples, Case(drafter="suffix", k=6, batch=3))
    assert [(len(s.rounds), len(s.ids)) for s in samples] == [(1, 6), (6, 6), (6, 6)]
    assert (found.rounds, found.drafted, found.accepted, found.tokens) == (13, 5 + (5 + 4 + 3 + 2 + 1), 5, 18)
    assert found.survival == (1 / 6,) * 5
    assert found.conditional == (1 / 6, 1, 1, 1, 1)
    assert found.acceptance_length == (6 + 5) / 6
    assert found.tokens_per_pass == 18 / 13
    assert found.throughput == pytest.approx(18 / max(sample.seconds for sample in samples))
    (batch,) = Batch.all_of(samples)
    assert [len(rounds) for rounds in batch.passes.values()] == [3, 2, 2, 2, 2, 2]
    work = sum(
        r[0].draft_seconds + r[0].verify_seconds + sum(x.verdict_seconds for x in r) for r in batch.passes.values()
    )
    told = [found.draft_seconds, found.verify_seconds, found.verdict_seconds]
    assert 6 * sum(value for value in told if value is not None) == pytest.approx(work)
    assert found.other_seconds is not None and found.other_seconds >= 0


def round_(at: float, tokens: int, drafted: int = 0, **options: float) -> RoundFigures:
    """A round that took 0.25 s of drafting, 0.5 s of the pass and 0.125 s of its verdict unless told otherwise."""
    seconds = {"draft_seconds": 0.25, "verify_seconds": 0.5, "verdict_seconds": 0.125, **options}
    return RoundFigures(drafted=drafted, depth=drafted, accepted=tokens - 1, tokens=tokens, at=at, **seconds)


def sample(case: int, prompt: str, rounds: Sequence[RoundFigures], **options: object) -> Sample:
    """An answer with these rounds."""
    arrivals = tuple((r.at, r.tokens) for r in rounds)
    known: dict[str, object] = {
        "category": "chat", "repeat": 0, "prompt_tokens": 3, "seconds": rounds[-1].at, "rounds": tuple(rounds),
        "arrivals": arrivals, "ids": (1,) * sum(r.tokens for r in rounds), "text": "", "finish_reason": "length",
        "seed": 0, **options,
    }  # fmt: skip
    return Sample.model_validate({"case": case, "prompt": prompt, **known})


def test_times_of_one_answer() -> None:
    """Prefill ends at 2 - 0.875; tokens come at 2, 2, 2, 3, 5, 5: the gaps are 0 0 1 2 0, and 1 2 between events."""
    found = summary([sample(0, "a", [round_(2, 3, 3), round_(3, 1, 3), round_(5, 2, 1)])])
    assert found.time_to_first.p50 == 2
    assert found.between_tokens.p50 == 0
    assert found.between_tokens.p95 == pytest.approx(1.8)
    assert (found.between_events.p50, found.between_events.p99) == (1.5, pytest.approx(1.99))
    assert found.per_token.p50 is None, "no window of 16 tokens"
    assert found.tokens_per_second == 6 / (5 - 1.125)
    assert found.throughput == 6 / 5
    assert (found.draft_seconds, found.verify_seconds, found.verdict_seconds) == (0.25, 0.5, 0.125)
    assert found.other_seconds == pytest.approx((5 - 1.125 - 3 * 0.875) / 3)


def test_a_sliding_window_is_not_misled_by_bursts() -> None:
    """Four tokens each second: a quarter of a second per token, whatever the gaps look like."""
    found = summary([sample(0, "a", [round_(float(at), 4, 3) for at in range(1, 11)])])
    assert (found.per_token.p50, found.per_token.p95) == (0.25, 0.25)
    assert (found.between_tokens.p50, found.between_tokens.p99) == (0, 1)


def test_rows_of_a_pass_share_its_time() -> None:
    """Two rows: draft and pass count once, both verdicts count, and prefill ends before the first pass."""
    rows = [sample(0, name, [round_(2, 1), round_(3, 1)], group=0) for name in "ab"]
    found = summary(rows, Case(drafter="suffix", k=3, batch=2))
    assert (found.draft_seconds, found.verify_seconds, found.verdict_seconds) == (0.25, 0.5, 0.25)
    assert found.other_seconds == 0
    assert found.tokens_per_second == 2 / (3 - 1)
    assert found.throughput == 4 / 3


def test_speed_is_paired_by_prompt_and_repeat() -> None:
    """Ratios of prompt a: 2 and 4 and 3, of b: 1/3 thrice; medians 3 and 1/3, whose geometric mean is 1."""
    plain, fast = [], []
    for repeat, (slow, quick) in enumerate([(8, 4), (8, 2), (9, 3)]):
        plain += [sample(0, "a", [round_(slow, 4)], repeat=repeat), sample(0, "b", [round_(1, 4)], repeat=repeat)]
        fast += [sample(1, "a", [round_(quick, 4)], repeat=repeat), sample(1, "b", [round_(3, 4)], repeat=repeat)]
    base, found = summarise([PLAIN, FAST], [*plain, *fast])
    assert (base.speedup, base.verdict, base.speedup_interval) == (None, None, None)
    assert found.speedup == pytest.approx(1)
    assert found.verdict == "indistinguishable"
    assert found.speedup_interval is not None
    assert found.speedup_interval.low == pytest.approx(1 / 3) and found.speedup_interval.high == pytest.approx(3)
    assert found.categories["chat"].speedup == pytest.approx(1)


def test_answers_of_other_lengths_are_compared_per_token() -> None:
    """Plain: 8 s for 4 tokens; the other rule wrote 12 in 12 s, so it is twice as fast."""
    _, found = summarise([PLAIN, FAST], [sample(0, "a", [round_(8, 4)]), sample(1, "a", [round_(12, 12)])])
    assert found.speedup == 2
    assert (found.speedup_interval, found.verdict) == (None, "indistinguishable"), "one prompt says nothing of others"


def test_a_pair_needs_the_same_seed() -> None:
    _, found = summarise([PLAIN, FAST], [sample(0, "a", [round_(8, 4)]), sample(1, "a", [round_(2, 4)], seed=1)])
    assert found.speedup is None and found.verdict is None


def test_clear_differences_have_a_verdict() -> None:
    quick = [sample(1, name, [round_(2 + place / 8, 4)]) for place, name in enumerate("abcdef")]
    plain = [sample(0, name, [round_(4, 4)]) for name in "abcdef"]
    assert summarise([PLAIN, FAST], [*plain, *quick])[1].verdict == "faster"
    slow = [sample(1, name, [round_(6 + place / 8, 4)]) for place, name in enumerate("abcdef")]
    assert summarise([PLAIN, FAST], [*plain, *slow])[1].verdict == "slower"


def test_identity_is_looked_at_where_it_is_promised() -> None:
    """`match` with its seed, `token` when greedy; a relaxed rule promises nothing; plain decoding is the measure."""
    heat = {"temperature": 1.0}
    cases = [
        PLAIN, FAST, FAST.model_copy(update={"verifier": "token"}), FAST.model_copy(update={"verifier": "typical"}),
        Case(drafter="none", **heat), Case(drafter="suffix", **heat), Case(drafter="suffix", verifier="token", **heat),
    ]  # fmt: skip
    samples = [sample(index, "a", [round_(1, 2)], ids=(1, 2)) for index in range(len(cases))]
    samples[2] = samples[2].model_copy(update={"ids": (1, 3)})
    found = compared(cases, samples)
    assert [item.identical for item in found] == [None, True, False, None, None, True, None]
    summaries = summarise(cases, found)
    assert [(item.compared, item.identical) for item in summaries] == [
        (0, 0), (1, 1), (1, 0), (0, 0), (0, 0), (1, 1), (0, 0),
    ]  # fmt: skip
    assert compared(cases, [samples[1]])[0].identical is None, "nothing to compare with"


def test_divergence_of_a_relaxed_rule_is_per_token() -> None:
    """Sums over the tokens of a round; None beside a TV is an infinite KL, and stays one."""
    finite = [round_(1, 3, 3, tv=0.6, kl=0.3), round_(2, 1, 3, tv=0.2, kl=0.1)]
    found = summary([sample(0, "a", finite)], Case(drafter="suffix", verifier="typical", k=3))
    assert (found.mean_tv, found.mean_kl, found.lossless) == (pytest.approx(0.2), pytest.approx(0.1), False)
    infinite = [round_(1, 3, 3, tv=0.6), round_(2, 1, 3, tv=0.2, kl=0.1)]
    found = summary([sample(0, "a", infinite)], Case(drafter="suffix", verifier="typical", k=3))
    assert (found.mean_tv, found.mean_kl) == (pytest.approx(0.2), None)


def test_perplexity_is_of_all_tokens_together() -> None:
    """4 tokens at 2 and 12 at 8 are 2^((4 + 36) / 16)."""
    samples = [sample(0, "a", [round_(1, 4)], perplexity=2.0), sample(0, "b", [round_(1, 12)], perplexity=8.0)]
    assert summary(samples).perplexity == pytest.approx(2 ** (40 / 16))


def test_memory() -> None:
    """The most of any sample; what the drafter adds is told from outside."""
    samples = [sample(0, "a", [round_(1, 4)], peak_memory=70), sample(0, "b", [round_(1, 4)], peak_memory=90)]
    (found,) = summarise([FAST], samples, {0: 20})
    assert (found.peak_memory, found.drafter_memory) == (90, 20)
    assert summary([sample(0, "a", [round_(1, 4)])]).peak_memory is None


def streamed(prompt: str, arrivals: Sequence[tuple[float, int]], counters: ServerCounters | None = None) -> Sample:
    """An answer of an endpoint, which tells no rounds."""
    told = {"rounds": (), "arrivals": tuple(arrivals), "seconds": arrivals[-1][0], "ids": (), "counters": counters}
    return sample(0, prompt, [round_(1, 1)]).model_copy(update=told)


def test_an_endpoint_counts_by_itself() -> None:
    """20 drafts with 60 tokens, of which 18 and 12 and 0 were accepted at the places; figures of rounds are missing."""
    one = ServerCounters(drafts=15, drafted=45, accepted=22, accepted_at=(13, 9, 0))
    other = ServerCounters(drafts=5, drafted=15, accepted=8, accepted_at=(5, 3))
    served = Case(drafter="as served", system="endpoint")
    found = summary([streamed("a", [(1, 1), (2, 4), (3, 4)], one), streamed("b", [(1, 1), (5, 8)], other)], served)
    assert (found.rounds, found.drafted, found.accepted, found.tokens) == (20, 60, 30, 18)
    assert (found.acceptance_rate, found.acceptance_length) == (0.5, 1 + 30 / 20)
    assert found.survival == (18 / 20, 12 / 20)
    assert found.conditional == (18 / 20, 12 / 18)
    assert (found.tokens_per_pass, found.verify_seconds, found.other_seconds, found.lossless) == (None,) * 4
    assert found.tokens_per_second == (8 / 2 + 8 / 4) / 2, "what came with the first event took the prefill"


def test_an_endpoint_without_counters() -> None:
    found = summary([streamed("a", [(2, 6)])], Case(drafter="as served", system="endpoint"))
    assert (found.rounds, found.drafted, found.acceptance_rate, found.acceptance_length) == (0, 0, None, None)
    assert found.tokens_per_second == 3, "all came at once, so nothing can be told from the prefill"


def test_results_survive_json() -> None:
    """No figure is one that JSON cannot say."""
    found = summary([sample(0, "a", [round_(1, 3, 3, tv=0.6)])], Case(drafter="suffix", verifier="typical", k=3))
    again = Summary.model_validate_json(found.model_dump_json())
    assert again == found
    assert not any(isinstance(value, float) and math.isinf(value) for value in found.model_dump().values())
