"""`outrider prove`: make the checks that go with the rule, show the certificate or why there is none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..api import Outrider
from ..errors import BadOption
from ..loading import Loader
from ..measure import machine
from ..measure.certificate import Check, Proof
from ..measure.proof import Outputs, Plan, Prover, against_transformers
from ..measure.proof_prompts import PROMPTS, SHORT
from ..prompt_files import read_prompts
from ..text import encode
from .certificates import show_proof
from .settings import Settings, decoder_only
from .showing import progress_bar, versions

CHAINS, TREES = "fixed:5", "fixed:4,12"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is tried; where it is not said, `quick` decides."""

    prompts: Path | None
    max_new_tokens: int | None
    seeds: int | None
    quick: bool

    def plan(self, llm: Outrider, policy: str | None) -> Plan:
        """The plan for a model.

        Raises:
            BadPrompt: the prompts cannot be used.
        """
        texts = list(PROMPTS[:3] if self.quick else PROMPTS) if self.prompts is None else read_prompts(self.prompts)
        new = (24 if self.quick else 48) if self.max_new_tokens is None else self.max_new_tokens
        return Plan(
            tuple(tuple(encode(llm.tokenizer, text)) for text in texts),
            tuple(tuple(encode(llm.tokenizer, text)) for text in SHORT),
            new,
            (policy,) if policy is not None else _policies(llm, self.quick),
            self.seeds or (1 if self.quick else 4),
            self.seeds or (400 if self.quick else 2000),
        )


def _policies(llm: Outrider, quick: bool) -> tuple[str, ...]:
    """Fixed lengths: a policy that drafts nothing where it does not pay would leave nothing to prove."""
    drafter = llm.drafter
    trees = drafter.always_branches or (drafter.makes_trees and not llm.verifier.chains_only and not quick)
    if drafter.always_branches:
        return (TREES,)
    return (CHAINS, TREES) if trees else (CHAINS,)


def run(settings: Settings, wanted: Wanted, *, show: bool) -> tuple[dict[str, Any], bool]:
    """Make the checks; the document, and whether all is in order.

    Ctrl-C keeps the checks that are done; without the others there is no certificate.

    Raises:
        UsageError: options or prompts that cannot be used, before any check.
    """
    if settings.drafter == "none":
        raise BadOption("The drafter 'none' drafts nothing, so there is nothing to prove: name another drafter.")
    llm = settings.load()
    decoder_only(llm, "prove")
    plan = wanted.plan(llm, settings.policy)
    configuration = {**llm.configuration, "policy": " and ".join(plan.policies)}
    loader = None
    if settings.quantize is None and llm.verifier.lossless:
        device = None if settings.device_map else str(llm.target.device)
        trust = settings.trust_remote_code
        loader = Loader(llm.target.dtype, device, settings.offline, trust, device_map=settings.device_map)
    notes = tuple(_notes(llm, settings))
    tokenizer, steps = llm.tokenizer, plan.steps(llm.verifier, transformers=loader is not None)
    with progress_bar("proving", steps) as advance:
        prover = Prover(llm, plan, advance)
        proof, outputs = _own(prover, llm, notes), prover.outputs
        del prover, llm  # the model goes before it is read again: there may be no room for both
        if loader is not None and not proof.missing:
            proof = _with_transformers(proof, outputs, loader, settings.target, advance)
    if show:
        show_proof(proof, configuration, plan, tokenizer)
    document = {
        **proof.as_dict(),
        "prompts": len(plan.prompts),
        "max_new_tokens": plan.max_new_tokens,
        "configuration": configuration,
        "versions": versions(),
        "machine": machine.describe(),
    }
    return document, proof.verdict in ("lossless", "relaxed")


def _own(prover: Prover, llm: Outrider, notes: tuple[str, ...]) -> Proof:
    """What is compared with the target itself."""
    proof = Proof(notes=notes)
    try:
        for check in _checks(prover, llm):
            proof = replace(proof, checks=(*proof.checks, check))
        if not llm.verifier.lossless:
            proof = replace(proof, bias=prover.bias())
    except KeyboardInterrupt:
        proof = replace(proof, missing=("interrupted before the checks were done",))
    return proof


def _checks(prover: Prover, llm: Outrider) -> Iterator[Check]:
    if llm.verifier.lossless:
        yield prover.greedy()
        # A rule under which draws do not depend on drafts promises the very tokens, which is more than their law.
        yield from (prover.seeded(),) if llm.verifier.coupled else prover.laws()


def _with_transformers(proof: Proof, outputs: Outputs, loader: Loader, name: str, advance: Any) -> Proof:
    """The same with the comparison with Transformers' own decoding."""
    gc.collect()
    try:
        check = against_transformers(outputs, loader.transformers_model(name), advance)
    except KeyboardInterrupt:
        return replace(proof, missing=("interrupted before the comparison with Transformers was done",))
    return replace(proof, checks=(*proof.checks, check))


def _notes(llm: Outrider, settings: Settings) -> Iterator[str]:
    if not llm.verifier.lossless:
        yield f"The rule {llm.verifier.spec} is relaxed: nothing is certified, its bias is measured."
        return
    if llm.exactness == "bits":
        yield "Logits do not depend on what shares a pass here, so no difference from plain decoding counts as a tie."
    else:
        yield (
            "Logits may differ by rounding with what shares a pass here, so differences within rounding of "
            f"{str(llm.target.dtype).removeprefix('torch.')} count as ties."
        )
    if settings.quantize is not None:
        yield (
            f"Transformers has no such {settings.quantize} model: outputs are held against plain decoding of the "
            "quantised model, not against Transformers."
        )
    if settings.policy is None:
        yield "Drafts have a fixed length unless --policy is given: goodput may draft nothing, which proves nothing."
