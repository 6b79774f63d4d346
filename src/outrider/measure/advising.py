"""What would make a case faster, argued from what was measured. Runs nothing and promises nothing.

Every sentence that names a speed says where it comes from: measured in this run, predicted by `predicting`, or a
ceiling, which is what the speed would be if a part cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from .explaining import Explanation, explain
from .predicting import predictions, share_with_draft
from .reporting.wording import method, number, setting, share, speculates, times
from .results import OWN, Case, CategoryFigures, Results, Sample, Summary

_BETTER = 1.03  # a gain that is worth a sentence
_LOSING = 0.9  # a factor that costs a tenth
_MOST = 5  # sentences per case

Advice = tuple[float, str]


def explained(results: Results, samples: Sequence[Sample] = ()) -> list[Explanation]:
    """Every case that speculates, with its factors and what would help."""
    summaries = {results.cases[found.case].name: found for found in results.summaries}
    told = []
    for one in explain(results, samples):
        advice = sorted(_advice(results, samples, summaries[one.case], one), key=lambda found: -found[0])
        told.append(one.model_copy(update={"advice": tuple(words for _, words in advice[:_MOST])}))
    return told


def _advice(results: Results, samples: Sequence[Sample], summary: Summary, one: Explanation) -> Iterator[Advice]:
    """(speed that it may reach, sentence)."""
    case = results.cases[summary.case]
    speed = one.speedup
    if speed is None or case.system != OWN:
        return
    if not summary.drafted:
        yield speed, "Nothing was drafted: the drafter has nothing to say on these prompts; try another one."
        return
    yield from _measured_better(results, case, speed)
    yield from _other_length(results, samples, summary, case, speed)
    yield from _pausing(summary, case, speed)
    yield from _cheaper(one, summary, speed)
    yield from _longer(summary, case, speed)
    yield from _text(summary, speed)


def _measured_better(results: Results, case: Case, speed: float) -> Iterator[Advice]:
    """The same drafter otherwise configured, in this run."""
    others = [
        (found.speedup, results.cases[found.case].name)
        for found in results.summaries
        if found.speedup is not None
        and speculates(results.cases[found.case])
        and method(results.cases[found.case]) == method(case)
        and setting(results.cases[found.case]) == setting(case)
    ]
    best, name = max(others)
    if best > _BETTER * speed:
        yield best, f"Take {name}: measured in this run at {times(best)}."


def _other_length(
    results: Results, samples: Sequence[Sample], summary: Summary, case: Case, speed: float
) -> Iterator[Advice]:
    """A shorter draft, by the speed model."""
    found = [(one.k, one.speedup) for one in predictions(results, samples, summary.case) if one.speedup is not None]
    here = next((reached for k, reached in found if k == case.k), None)
    if here is None:
        return
    k, best = max(found, key=lambda one: one[1])
    if best > _BETTER * here:
        gained = speed * best / here
        yield (
            gained,
            f"Shorten the draft to k = {k}: about {times(gained)}, predicted from these answers and pass costs.",
        )


def _pausing(summary: Summary, case: Case, speed: float) -> Iterator[Advice]:
    """A policy that does not draft where drafting loses."""
    known = {name: found for name, found in summary.categories.items() if found.speedup}
    losing = {name: found for name, found in known.items() if _loses(found)}
    fixed = case.k is not None or case.policy != "goodput"
    if losing and len(losing) < len(known):
        weighted = [max(1.0, found.speedup or 1.0) for found in known.values() for _ in range(found.prompts)]
        gained = geometric_mean(weighted)
        if gained < _BETTER * speed:
            return
        names = ", ".join(f"{name} {times(found.speedup)}" for name, found in losing.items())
        means = "Take --policy goodput, which pauses" if fixed else "Let the policy pause"
        yield gained, f"{means} where drafting loses ({names}): up to {times(gained)} if pausing costs nothing."
    elif speed < 1 and fixed:
        yield 1.0, "Take --policy goodput: it drafts nothing where drafting does not pay."


def _loses(found: CategoryFigures) -> bool:
    """Whether it is slower than plain decoding beyond doubt, or, where nobody can tell, by a good deal."""
    sure = found.speedup_interval
    return sure.high < 1 if sure else found.speedup is not None and found.speedup < _LOSING


def _cheaper(one: Explanation, summary: Summary, speed: float) -> Iterator[Advice]:
    """Parts that cost a tenth or more; the speed that counts is half way to the ceiling."""
    width = summary.drafted / summary.rounds / share_with_draft(summary)
    sentences = {
        "drafting": "A cheaper drafter: at most {} if drafting cost nothing.",
        "checking": f"A smaller tree or a shorter draft (now {number(width, 1)} tokens, where there is one): at most "
        "{} if checking cost what one token costs.",
        "overhead": "Less work around the passes (on a GPU --compile): at most {} if it were plain decoding's.",
        "reading": "Longer answers, or prompts that begin alike and are read once: at most {} without reading.",
    }
    for part, ceiling in one.ceilings.items():
        if one.factor(part) < _LOSING:
            yield (speed + ceiling) / 2, sentences[part].format(times(ceiling))


def _longer(summary: Summary, case: Case, speed: float) -> Iterator[Advice]:
    """Drafts that are kept to their end could go on."""
    if case.k is not None and len(summary.survival) == case.k and summary.survival[-1] > 0.4:
        yield (
            speed * _BETTER,
            (f"Longer drafts: {share(summary.survival[-1])} of them are kept to the end; measure k = {2 * case.k}."),
        )


def _text(summary: Summary, speed: float) -> Iterator[Advice]:
    """A drafter that does not know the text."""
    silent = 1 - share_with_draft(summary)
    if silent > 0.25:
        yield (
            speed * _BETTER,
            (f"A second drafter for the {share(silent)} of rounds in which this one has nothing to say: cascade:A,B."),
        )
    if not summary.survival or summary.survival[0] < 0.5:
        first = summary.survival[0] if summary.survival else 0.0
        yield (
            speed,
            (f"A drafter that knows this text better: of this one's first tokens only {share(first)} are kept."),
        )
