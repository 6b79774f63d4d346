"""Which configurations to compare: the cross product of lists, with plain decoding beside each. Loads no model.

What cannot work is refused here, before any work, combination by combination.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from .. import combinations, policy, verify
from ..drafters import DRAFTERS, drafter_class
from ..drafters.options import split_specs
from ..drafters.reference import Reference
from ..errors import BadOption
from ..policy import DEFAULT as POLICY
from ..policy import POLICIES
from ..verify import DEFAULT as VERIFIER
from ..verify import VERIFIERS
from .costs import parse_numbers
from .results import ENDPOINT, OWN, PLAIN, PROMPT_LOOKUP, SERVED, TRANSFORMERS, Case

BASELINES = (TRANSFORMERS, "transformers-lookup")
_LOOKED_UP = 10  # tokens, the number in Transformers' documentation


def expand(
    drafters: str | Sequence[str],
    *,
    k: str | None = None,
    batch: str = "1",
    temperature: str = "0",
    quantize: str = "none",
    verifiers: str = VERIFIER,
    policies: str | None = None,
) -> tuple[Case, ...]:
    """The cross product of comma lists; plain decoding is there for every batch, temperature and quantization.

    Args:
        drafters: specs; what follows a cascade's name is its own, so several cascades take several lists.
        k: draft lengths, like "1,2,4" or "1-5": each is the policy `fixed:k`.
        batch: prompts served together.
        temperature: of the sampling.
        quantize: "none" and "int8".
        verifiers: specs.
        policies: specs, beside `k` if both are given; "goodput" if neither is.

    Raises:
        BadOption: a part that there is not, or parts that do not go together.
    """
    lists = [drafters] if isinstance(drafters, str) else drafters
    specs = [spec for text in lists for spec in _specs(text, DRAFTERS, "drafters", drafter_class)]
    rules = _specs(verifiers, VERIFIERS, "verifiers", verify.make_verifier)
    lengths = _lengths(k, policies)
    found = []
    for kind, heat, size in product(
        _quantizations(quantize), _temperatures(temperature), parse_numbers(batch, "batch")
    ):
        plain = Case(drafter=PLAIN, batch=size, temperature=heat, quantize=kind)
        found.append(plain)
        for spec, rule, (length, long) in product(dict.fromkeys(specs), rules, lengths):
            if spec != PLAIN:
                parts = {"drafter": spec, "verifier": rule, "policy": long, "k": length}
                found.append(plain.model_copy(update=parts))
    if len(found) == len({case.plain for case in found}) and (k or policies or rules != [VERIFIER]):
        raise BadOption(
            "The drafter 'none' drafts nothing, so k, policies and verifiers would change nothing: name another "
            "drafter beside it, or leave them out."
        )
    for case in found:
        _check(case)
    return tuple(found)


def of_endpoint(batch: str, temperature: str) -> tuple[Case, ...]:
    """What a server can be asked for: so many requests at once, at a temperature.

    Raises:
        BadOption: a list that is none.
    """
    pairs = product(_temperatures(temperature), parse_numbers(batch, "batch"))
    return tuple(Case(drafter=SERVED, system=ENDPOINT, batch=size, temperature=heat) for heat, size in pairs)


def baselines(names: str, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Transformers' own `generate` beside these cases, for each of their batches and temperatures.

    Args:
        names: "transformers" (plain), "transformers-lookup" (its prompt lookup), or both with a comma between.
        cases: see `expand`.

    Raises:
        BadOption: another name, or what Transformers cannot do.
    """
    asked = [part.strip() for part in names.split(",") if part.strip()]
    if not asked or not set(asked) <= set(BASELINES):
        raise BadOption(f"--baseline is {names!r}: write {' or '.join(BASELINES)}, or both with a comma between.")
    plain = [case for case in cases if case == case.plain and case.quantize is None]
    if not plain:
        raise BadOption("Transformers has no such quantised model to compare with: add none to --quantize.")
    if BASELINES[1] in asked and any(case.batch > 1 for case in plain):
        raise BadOption("Transformers looks up for one prompt at a time: leave transformers-lookup out, or --batch 1.")
    parts: dict[str, Any] = {"drafter": PROMPT_LOOKUP, "k": _LOOKED_UP, "policy": f"fixed:{_LOOKED_UP}"}
    kinds = {BASELINES[0]: {"system": TRANSFORMERS}, BASELINES[1]: {"system": TRANSFORMERS, **parts}}
    return tuple(case.model_copy(update=kinds[name]) for case in plain for name in dict.fromkeys(asked))


def learns(case: Case) -> bool:
    """Whether its drafter may draft from answers to the prompts before."""
    return case.system == OWN and drafter_class(case.drafter).learns


def promised(case: Case) -> bool:
    """Whether its answers have to be plain decoding's, token for token: a lossless rule that is greedy or coupled, and
    Transformers' greedy decoding but for near ties."""
    if case.system != OWN:
        return case.system == TRANSFORMERS and case.temperature == 0
    rule = verify.make_verifier(case.verifier)
    return rule.lossless and (rule.coupled or case.temperature == 0)


def _specs(text: str, names: Iterable[str], option: str, make: Callable[[str], object]) -> list[str]:
    """The specs of a list, each of them looked at."""
    found = [spec.strip() for spec in split_specs(text, names) if spec.strip()]
    if not found:
        raise BadOption(f"--{option} is empty: name at least one.")
    for spec in found:
        make(spec)
    return list(dict.fromkeys(found))


def _lengths(k: str | None, policies: str | None) -> list[tuple[int | None, str]]:
    """(draft length or None, policy) for each."""
    found: list[tuple[int | None, str]] = []
    if k is not None:
        found += [(length, f"fixed:{length}") for length in parse_numbers(k, "k")]
    if policies is not None or k is None:
        for spec in _specs(policies or POLICY, POLICIES, "policies", policy.make_policy):
            name, _, argument = spec.partition(":")
            chain = name == "fixed" and argument.isdecimal()
            found.append((int(argument), f"fixed:{int(argument)}") if chain else (None, spec))
    return list(dict.fromkeys(found))


def _temperatures(text: str) -> list[float]:
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise BadOption(f"--temperature is {text!r}: write numbers of 0 or more with commas between, like 0,0.7.")
        found.append(value)
    return list(dict.fromkeys(found))


def _quantizations(text: str) -> list[str | None]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or not set(found) <= {"none", "int8"}:
        raise BadOption(f"--quantize is {text!r}: write none, int8, or both with a comma between.")
    return [None if part == "none" else part for part in dict.fromkeys(found)]


def _check(case: Case) -> None:
    """Refuse a drafter, rule and policy that do not go together."""
    kind = drafter_class(case.drafter)
    if issubclass(kind, Reference):
        raise BadOption(
            "The drafter 'reference' needs the text that is expected of each prompt, which bench has not: measure "
            "'suffix' or 'lookup', which draft from the prompt."
        )
    setting = policy.Setting(case.drafter, kind.has_law)
    if case.drafter != PLAIN:
        budget = policy.make_policy(case.policy, setting)().budget()
        combinations.check(verify.make_verifier(case.verifier), kind, case.drafter, budget)
