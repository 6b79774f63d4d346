"""Which drafter, rule and policy go together; docs/combinations.md is the table. Knows their traits, not their work."""

from __future__ import annotations

from .drafters import Drafter
from .errors import BadOption
from .types import Budget
from .verify import Verifier


def check(verifier: Verifier, drafter: type[Drafter] | Drafter, spec: str, budget: Budget) -> None:
    """Refuse what cannot work, and options that would change nothing.

    Args:
        verifier: the rule.
        drafter: its class, before anything of it is loaded, or the drafter itself.
        spec: the drafter's name, for the message.
        budget: a fresh policy's first.

    Raises:
        BadOption: with the remedy.
    """
    if verifier.needs_probs and not drafter.has_law:
        if drafter.reencodes:
            why = f"the drafts of {spec!r} pass through text, where their probabilities are lost"
        else:
            why = f"the drafter {spec!r} has none"
        raise BadOption(
            f"The verifier '{verifier.spec}' mixes the drafter's probabilities into the target's, and {why}: use a "
            "draft model of the target's vocabulary (model:SPEC), or another verifier."
        )
    if verifier.chains_only and drafter.always_branches:
        raise BadOption(
            f"The verifier '{verifier.spec}' serves chains and the drafter {spec!r} always makes trees: use the "
            "verifier 'match', 'token' or 'traversal', or another drafter."
        )
    if budget.nodes <= budget.depth:
        return
    if verifier.chains_only:
        raise BadOption(
            f"The verifier '{verifier.spec}' serves chains and the policy asks for trees: use the verifier 'match', "
            "'token' or 'traversal', or a policy without branches."
        )
    if not drafter.makes_trees:
        raise BadOption(
            f"The drafter {spec!r} makes chains and the policy asks for trees, so its branches would change nothing: "
            "use a policy without branches, or a drafter that makes trees."
        )
