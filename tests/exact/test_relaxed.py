"""The relaxed rules keep their own law, exactly: that of a closed formula, whose distance from p they report.

The formulas stand here a second time, in NumPy, apart from the code that they check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from checks import Case, assert_exact, assert_fits, assert_rule_exact, own_law, text_of
from toy import Branching, Context, Forked, Likeliest, Sampled, Script, ScriptedNoise, Table, ToyTarget, outcomes

from outrider.drafters.model import ModelDrafter
from outrider.engine import Engine
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Law, Sampling
from outrider.stats import Stats
from outrider.types import Draft, Drawn, Tree, Verdict
from outrider.verify import Verifier, make_verifier
from outrider.verify.ensemble import Ensemble
from outrider.verify.lenience import Lenience
from outrider.verify.typical import Typical

Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def mixture(p: Array, q: Array, weight: float) -> Array:
    """The ensemble's law."""
    return weight * p + (1 - weight) * q


def lenient(p: Array, q: Array, lenience: float) -> Array:
    """What is kept of a draft from q, and the residual for the rest."""
    kept = np.minimum(q, p / lenience)
    rest = np.maximum(p - q, 0)
    return kept + (1 - kept.sum()) * (rest / rest.sum() if rest.sum() > 0 else p)


def typical(p: Array, q: Array, epsilon: float, delta: float) -> Array:
    """The drafter's likeliest token for certain where the target finds it plausible, else the target's law."""
    entropy = -sum(chance * math.log(chance) for chance in p if chance > 0)
    token = int(q.argmax())
    if p[token] <= min(epsilon, delta * math.exp(-entropy)):
        return p
    return np.eye(len(p))[token]


def after(p: Table, q: Table, formula: Callable[..., Array], *options: float) -> Callable[[Context], torch.Tensor]:
    """The formula at every text."""
    return lambda context: torch.tensor(formula(p.law(context).numpy(), q.law(context).numpy(), *options))


def point(q: Array) -> Array:
    """All on the likeliest token."""
    return np.eye(len(q))[int(q.argmax())]


def case_of(seed: int, kind: str, rule: str, *options: float, depth: int = 2) -> Case:
    """A relaxed rule on a chain, two tokens of whose output have to follow the formula of its name."""
    p, q = Table(3, seed), Table(3, seed + 500)
    formulas: dict[str, Callable[..., Array]] = {"ensemble": mixture, "lenience": lenient, "typical": typical}
    formula = formulas[rule]
    if kind == "point" and rule == "lenience":
        formula = lambda p, q, lenience: lenient(p, point(q), lenience)  # noqa: E731
    spec = f"{rule}:{','.join(map(str, options))}"
    drafter = Sampled(q) if kind == "sampled" else Likeliest(q)
    expected = after(p, q, formula, *options)
    return Case(p, drafter, make_verifier(spec), depth, horizon=depth, beyond=1, expected=expected)


@pytest.mark.parametrize("seed", range(70, 74))
@pytest.mark.parametrize(
    ("rule", "kind", "options"),
    [
        ("ensemble", "sampled", (0.7,)),
        ("ensemble", "sampled", (0.1,)),
        ("lenience", "sampled", (0.5,)),
        ("lenience", "sampled", (0.9,)),
        ("lenience", "point", (0.5,)),
        ("typical", "point", (0.09, 0.3)),
        ("typical", "point", (0.5, 1.0)),
    ],
)
def test_law_of_a_chain(rule: str, kind: str, options: tuple[float, ...], seed: int) -> None:
    """Joint law of two tokens over two rounds, through the engine."""
    assert_exact(case_of(seed, kind, rule, *options))


@pytest.mark.parametrize("drawn", ["iid", "without_replacement"])
def test_law_of_an_ensemble_on_a_tree(drawn: Drawn) -> None:
    """Exact verification against the mixture, for siblings of either kind."""
    p, q = Table(3, 75), Table(3, 575)
    drafter = Forked(q, {(): 2, (0,): 1, (1,): 1}, drawn)
    assert_rule_exact(Case(p, drafter, Ensemble(), 2, horizon=2, beyond=1, expected=after(p, q, mixture, 0.7)))


def test_lossless_rules_are_no_formula() -> None:
    """The check itself: the mixture is not what `token` writes."""
    case = case_of(70, "sampled", "ensemble", 0.7)
    with pytest.raises(AssertionError, match="TV"):
        assert_exact(Case(case.table, case.drafter, make_verifier("token"), 2, 2, expected=case.expected, beyond=1))


def test_lenience_writes_no_token_more_than_its_share() -> None:
    """At most 1 / l times as likely as the target has it."""
    for seed in range(20):
        p, q = Table(4, seed).law((0,)), Table(4, seed + 500).law((0,))
        assert bool((Lenience(0.4).used(p, q) <= p / 0.4 + 1e-12).all())


def verdicts(verifier: Verifier, p: torch.Tensor, draft: Draft) -> dict[Verdict, float]:
    """Every verdict on a draft, and its probability."""
    return outcomes(lambda script: verifier(Law(probs=p), draft, ScriptedNoise(script), 0))


def chain_of(p: Table, q: Table, tokens: list[int]) -> tuple[torch.Tensor, Draft]:
    """A drafted chain, as if drawn from q, and the target's laws."""
    texts = [tuple(tokens[: place + 1]) for place in range(len(tokens))]
    laws = torch.stack([q.law(text) for text in texts[:-1]])
    return torch.stack([p.law(text) for text in texts]), Draft(Tree.chain(tokens), laws, "iid")


def divergences(used: Array, p: Array) -> tuple[float, float]:
    """TV and KL by their definitions."""
    kl = sum(u * math.log(u / v) if v > 0 else math.inf for u, v in zip(used, p, strict=True) if u > 0)
    return float(np.abs(used - p).sum() / 2), float(kl)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight", [0.2, 0.7])
def test_an_ensemble_reports_its_bias(seed: int, weight: float) -> None:
    """TV is exactly (1 - w) * TV(p, q) at each node that was drafted behind, and nothing at the end of the draft."""
    p, q = Table(4, 600 + seed), Table(4, 700 + seed)
    laws, draft = chain_of(p, q, [0, 1, 2])
    for verdict in verdicts(Ensemble(weight), laws, draft):
        assert len(verdict.divergence) == len(verdict.path)
        for node, away in zip(verdict.path, verdict.divergence, strict=True):
            if node == 2:
                assert away == (0, 0)
                continue
            one, other = laws[node].numpy(), draft.probs[node].numpy()  # type: ignore[index]
            assert away.tv == pytest.approx((1 - weight) * np.abs(one - other).sum() / 2)
            assert away == pytest.approx(divergences(mixture(one, other, weight), one))


def test_an_ensemble_refuses_less() -> None:
    """A drafted token is refused with probability w * TV(p, q)."""
    p, q = Table(4, 81).law((0,)), Table(4, 82).law((0,))
    distance = float((p - q).abs().sum() / 2)

    def refused(script: Script) -> bool:
        noise = ScriptedNoise(script)
        token = noise.categorical(q)
        draft = Draft(Tree.chain([0, token]), q[None], "iid")
        return len(Ensemble(0.6)(Law(probs=torch.stack([p, p])), draft, noise, 0).path) == 1

    assert outcomes(refused)[True] == pytest.approx(0.6 * distance)


def test_lenience_reports_its_bias() -> None:
    """Of the law averaged over the draws of the draft."""
    laws, draft = chain_of(Table(4, 83), Table(4, 84), [0, 1, 2])
    for verdict in verdicts(Lenience(0.5), laws, draft):
        for node, away in zip(verdict.path, verdict.divergence, strict=True):
            if node < 2:
                one, other = laws[node].numpy(), draft.probs[node].numpy()  # type: ignore[index]
                assert away == pytest.approx(divergences(lenient(one, other, 0.5), one))
        assert len(verdict.divergence) == len(verdict.path)


def test_typical_keeps_the_longest_plausible_path() -> None:
    """Of a tree: the deepest, the likeliest of equally deep ones; each kept token was written for certain."""
    p = torch.tensor(
        [
            [0.5, 0.3, 0.2, 0.0],  # node 0: children 0, 1, 3
            [0.1, 0.0, 0.0, 0.9],  # node 1 (token 0): child 1, impossible
            [0.4, 0.6, 0.0, 0.0],  # node 2 (token 1): children 0, 1
            [1.0, 0.0, 0.0, 0.0],  # node 3 (token 3), which is impossible itself
            [0.0, 1.0, 0.0, 0.0],
            [0.0, 0.0, 1.0, 0.0],  # node 5 (token 0 behind node 2)
            [0.0, 0.0, 0.0, 1.0],  # node 6 (token 1 behind node 2)
            [1.0, 0.0, 0.0, 0.0],  # node 7 (token 0 behind the impossible node 3)
        ],
        dtype=torch.float64,
    )
    tree = Tree(torch.tensor([2, 0, 1, 3, 1, 0, 1, 0]), torch.tensor([-1, 0, 0, 0, 1, 2, 2, 3]))
    ((verdict, chance),) = verdicts(Typical(0.09, 0.3), p, Draft(tree)).items()
    assert chance == 1
    assert (verdict.path, verdict.token) == ((0, 2, 6), 3)
    assert verdict.divergence[0] == pytest.approx((0.7, -math.log(0.3)))
    assert verdict.divergence[1] == pytest.approx((0.4, -math.log(0.6)))
    assert verdict.divergence[2] == (0, 0)


@pytest.mark.parametrize(("epsilon", "kept"), [(0.5, 0), (0.25, 1)])
def test_the_threshold_of_typical_acceptance(epsilon: float, kept: int) -> None:
    """Above min(epsilon, delta * exp(-H)): at two equal tokens exp(-H) is a half, and a half is not above itself."""
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    draft = Draft(Tree.chain([2, 1]))
    for delta in (0.5, 100.0):
        limit = min(epsilon, delta * 0.5)
        assert Typical(epsilon, delta).threshold(p[0]) == pytest.approx(limit)
    assert {len(verdict.path) - 1 for verdict in verdicts(Typical(epsilon, 100.0), p, draft)} == {kept}


def greedy_text(p: Table, q: Table, weight: float, drafted: list[bool]) -> list[int]:
    """What a greedy ensemble has to write, given at which tokens something was drafted."""
    text: list[int] = []
    for mixed in drafted:
        context = (0, 1, *text)
        law = weight * p.law(context) + (1 - weight) * q.law(context) if mixed else p.law(context)
        text.append(int(law.argmax()))
    return text


@pytest.mark.parametrize("nodes", [3, 6], ids=["chain", "tree"])
def test_a_greedy_ensemble(nodes: int) -> None:
    """The mixture's likeliest token where something was drafted, the target's own behind a draft kept to its end."""
    from toy import Wide

    differs = 0
    for seed in range(6):
        p, q = Table(4, 800 + seed), Table(4, 900 + seed)
        drafter = ModelDrafter(ToyTarget(q), 4)
        engine = Engine(ToyTarget(p), drafter, Ensemble(0.5), lambda: Wide(3, nodes))
        rounds = [round_ for _, round_ in engine.run([Request((0, 1), Sampling(), 0, 20)])]
        tokens = [token for round_ in rounds for token in round_.tokens]
        drafted = [
            bool((round_.tree.parents == node).any()) for round_ in rounds for node in round_.path[: len(round_.tokens)]
        ]
        assert tokens == greedy_text(p, q, 0.5, drafted)
        context: list[int] = [0, 1]
        away = [divergence for round_ in rounds for divergence in round_.divergence]
        assert len(away) == len(tokens)
        for token, divergence in zip(tokens, away, strict=True):
            own = token == int(p.law(tuple(context)).argmax())
            assert divergence == ((0, 0) if own else (1, math.inf))
            context.append(token)
            differs += not own
        assert Stats.of(rounds).mean_tv == pytest.approx(sum(a.tv for a in away) / len(away))
    assert differs


@pytest.mark.parametrize("spec", ["typical", "lenience:0.5"])
def test_at_temperature_zero_nothing_is_relaxed(spec: str) -> None:
    """These two only ever keep tokens that the target may write, and a greedy target may write one."""
    p = Table(4, 85)
    written = []
    for rule in (spec, "match"):
        engine = Engine(ToyTarget(p), Likeliest(Table(4, 86)), make_verifier(rule), lambda: Fixed(3))
        rounds = [round_ for _, round_ in engine.run([Request((0, 1), Sampling(), 0, 15)])]
        written.append([token for round_ in rounds for token in round_.tokens])
        assert Stats.of(rounds).mean_tv in (None, 0)
    assert written[0] == written[1]


@pytest.mark.parametrize("spec", ["ensemble", "typical", "lenience:0.5"])
def test_what_is_reported_is_cut_with_the_tokens(spec: str) -> None:
    """One divergence for each committed token, also where EOS or the budget ends a round early; no draft, no bias."""
    p, q = Table(4, 87), Table(4, 88)
    engine = Engine(ToyTarget(p, eos=(2,)), ModelDrafter(ToyTarget(q), 4), make_verifier(spec), lambda: Fixed(4))
    requests = [Request((0, 1), Sampling(temperature=1.0), seed, 9) for seed in range(30)]
    rounds = [round_ for _, round_ in engine.run(requests)]
    assert any(len(round_.path) == len(round_.tokens) + 1 for round_ in rounds), "some end with a drafted EOS"
    for round_ in rounds:
        assert len(round_.divergence) == len(round_.tokens)
        assert round_.drafted or round_.divergence == ((0, 0),)
    assert Stats.of(rounds).mean_tv > 0  # type: ignore[operator]


def test_samples_of_an_ensemble() -> None:
    """Tier 2: with the real noise the texts follow the mixture."""
    p, q = (Table(3, seed, dtype=torch.float32) for seed in (89, 90))
    expected = lambda context: (0.7 * p.law(context) + 0.3 * q.law(context)).double()  # noqa: E731
    case = Case(p, Sampled(q), Ensemble(), depth=2, horizon=2, beyond=1, expected=expected)
    assert_fits(Counter(text_of(case, seed) for seed in range(3000)), own_law(case))


def test_lossless_rules_report_nothing() -> None:
    """No divergence in verdict, round or figures."""
    for rule in ("match", "token", "block", "traversal"):
        verifier = make_verifier(rule)
        assert verifier.lossless
        engine = Engine(ToyTarget(Table(4, 91)), Branching(lambda context: (0,)), verifier, lambda: Fixed(2))
        rounds = [round_ for _, round_ in engine.run([Request((0, 1), Sampling(temperature=1.0), 0, 6)])]
        assert all(round_.divergence == () for round_ in rounds)
        assert (Stats.of(rounds).mean_tv, Stats.of(rounds).mean_kl) == (None, None)
