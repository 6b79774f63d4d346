"""Figures as people read them, and the definition of each. Knows no layout."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from ..results import Case, Interval, Results, Summary

NOTHING = "–"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\ud800-\udfff\ufffe\uffff]")

TERMS: dict[str, str] = {
    "speed": "geometric mean over prompts of plain decoding's seconds per token / these seconds per token, paired by "
    "prompt and seed, reading the prompt included; the interval is the 95 % bootstrap interval over prompts",
    "verdict": "faster or slower where the interval lies wholly on one side of 1, else indistinguishable",
    "tokens/s": "median over prompts of an answer's tokens per second, reading the prompt not included: the speed that "
    "one user sees",
    "throughput": "all tokens of the case per second of wall time, all prompts of a batch together",
    "acceptance length": "tokens written per round that had a draft, the bonus token (the target's own) COUNTED: 1 at "
    "worst, k + 1 at best",
    "acceptance rate": "drafted tokens that were kept / drafted tokens, the bonus token NOT counted",
    "tokens/pass": "tokens written per pass of the target and prompt, rounds without a draft included",
    "unconditional": "share of rounds with a draft in which tokens 1 to k were all kept; vLLM calls it acceptance "
    "per position",
    "conditional": "share of the rounds that had kept tokens 1 to k-1 in which token k was kept too",
    "first token": "seconds from the request to its first token, reading the prompt included",
    "between tokens": "seconds between two tokens as they arrive: those of one round arrive together, so most wait 0 "
    "and the first of a round waits long; misleading alone",
    "between events": "seconds between two arrivals, however many tokens each brings",
    "per token": "seconds per token over a sliding window of 16 tokens, which bursts do not mislead",
    "draft": "drafting, per pass, all prompts of a batch together",
    "verify": "the target's pass itself",
    "decide": "laws and verdicts",
    "other": "the rest of the time between reading the prompt and the last token",
    "identical": "answers whose token ids equal plain decoding's, of those that were compared",
    "perplexity": "of all answers together, under the target",
    "mean TV": "how far the laws that a relaxed rule drew from lie from the target's, mean over tokens: total "
    "variation, 0 to 1",
    "mean KL": "the same as Kullback-Leibler divergence, in nats",
    "peak memory": "of the process at most while the case ran, less the weights of other cases' drafters",
    "drafter's weights": "memory that the drafter's weights add",
    "logit": "the target's own score of that token there, in plain decoding",
    "gap": "between its two highest logits there",
    "tie": "rounding explains it: the two logits are as close as two ways of adding the same numbers",
    "fault": "rounding does not explain it: please report it",
}


def terms(*names: str) -> tuple[tuple[str, str], ...]:
    """Some of the definitions."""
    return tuple((name, TERMS[name]) for name in names)


def clean(text: str) -> str:
    """Text with nothing in it that HTML or UTF-8 cannot hold."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float | None, digits: int = 2) -> str:
    """A figure with so many decimals; a dash for none, a sign for infinity."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """Percent."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value * 100:.1f} %"


def milliseconds(value: float | None) -> str:
    """Seconds, shown as milliseconds with about three digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return number(value * 1e3, 0 if value >= 0.1 else 1 if value >= 0.01 else 2)


def size(value: int | None) -> str:
    """Bytes."""
    if value is None:
        return NOTHING
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def times(value: float | None) -> str:
    """A ratio of speeds."""
    return NOTHING if value is None else f"{number(value)}×"


def between(interval: Interval | None) -> str:
    """An interval, or that there is none."""
    return "no interval" if interval is None else f"{number(interval.low)} to {number(interval.high)}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def method(case: Case) -> str:
    """What is compared across k, batch and temperature: drafter, verifier and who answers."""
    return Case(drafter=case.drafter, verifier=case.verifier, system=case.system).name


def setting(case: Case) -> str:
    """What methods are compared under: batch, temperature and quantisation, where they are not the usual ones."""
    bare = Case(drafter="", batch=case.batch, temperature=case.temperature, quantize=case.quantize).name
    return bare.removeprefix(", ")


def speculates(case: Case) -> bool:
    """Whether the case is anything but our own plain decoding, with which the others are compared."""
    return case != case.plain


def pairs(results: Results) -> list[tuple[Case, Summary]]:
    """Each summary with its case, in the order of the cases."""
    return [(results.cases[found.case], found) for found in sorted(results.summaries, key=lambda found: found.case)]


def sentence(case: Case, summary: Summary) -> str:
    """The verdict on a case in figures and words, without its name and without the verdict's own word."""
    if not speculates(case):
        return f"plain decoding at {number(summary.tokens_per_second, 1)} tokens/s."
    if summary.speedup is None:
        return "no plain decoding to compare with in this run: no ratio."
    over = counted(summary.prompts, "prompt")
    found = summary.speedup_interval
    how_sure = f"{found.level * 100:g} % interval {between(found)}, {over}" if found else f"no interval, {over}"
    ratio = f"{times(summary.speedup)} plain decoding's speed ({how_sure})"
    return f"{ratio}.{_what_it_writes(summary)}"


def fastest(results: Results) -> list[str]:
    """Of each setting the case to choose: the fastest of those that keep the target's law and are faster."""
    found: dict[str, tuple[Case, Summary]] = {}
    for case, summary in pairs(results):
        here = setting(case)
        if speculates(case) and summary.lossless and summary.verdict == "faster" and summary.speedup is not None:
            best = found.get(here)
            if best is None or (best[1].speedup or 0.0) < summary.speedup:
                found[here] = (case, summary)
    told = []
    for here in dict.fromkeys(setting(case) for case, _ in pairs(results)):
        where = f" at {here}" if here else ""
        if here in found:
            case, summary = found[here]
            told.append(f"Fastest without changing the target's law{where}: {case.name}, {times(summary.speedup)}.")
        else:
            told.append(f"Nothing that keeps the target's law is faster than plain decoding{where}.")
    return told


def _what_it_writes(summary: Summary) -> str:
    if summary.lossless is False:
        return " RELAXED: the output does not have the target's law."
    if not summary.compared:
        return ""
    if summary.identical == summary.compared:
        return f" Identical output in all {summary.compared}."
    return f" Output differs in {summary.compared - summary.identical} of {summary.compared}: see the divergences."


def histogram(survival: tuple[float, ...]) -> tuple[float, ...]:
    """Share of rounds with a draft in which exactly 0, 1, ... tokens were kept, from the shares of at least so many."""
    return tuple(at_least - more for at_least, more in pairwise((1.0, *survival, 0.0)))
