"""The noise: uniform, independent wherever it has to be, and the same wherever it has to be.

Seeds are fixed, so thresholds at one in a million are met or not for good.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from outrider import native
from outrider.noise import SeededNoise, fresh_seed, key, mix, race, uniforms

ALPHA = 1e-6
UNIFORM_4 = torch.full((4,), 0.25)


def column(keys: list[int], token: int = 3) -> torch.Tensor:
    """The uniform of one token under many keys."""
    ids = torch.tensor([token])
    return torch.cat([uniforms(base, ids) for base in keys])


def position_keys(count: int, seed: int = 1) -> list[int]:
    """The keys of consecutive positions, as `match` uses them."""
    return [key(seed, 1, position) for position in range(count)]


@pytest.mark.parametrize("base", [0, 1, key(1, 1, 0), key(2**40, 1, 10**6), (1 << 64) - 1])
def test_uniform_over_token_ids(base: int) -> None:
    """One key, a vocabulary of ids: Kolmogorov-Smirnov."""
    u = uniforms(base, torch.arange(150_000))
    assert u.dtype == torch.float32
    assert float(u.min()) > 0
    assert float(u.max()) <= 1
    assert stats.kstest(u.double().numpy(), "uniform").pvalue > ALPHA


@pytest.mark.parametrize("token", [0, 1, 151_643])
def test_uniform_over_positions_and_seeds(token: int) -> None:
    """One token under consecutive positions, and under consecutive seeds."""
    assert stats.kstest(column(position_keys(4000), token).numpy(), "uniform").pvalue > ALPHA
    assert stats.kstest(column([key(seed, 1, 5) for seed in range(4000)], token).numpy(), "uniform").pvalue > ALPHA


def independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Chi-square of the pairs over an 8 x 8 grid."""
    cells = (one * 7.999).long() * 8 + (other * 7.999).long()
    return bool(stats.chisquare(torch.bincount(cells, minlength=64).numpy()).pvalue > ALPHA)


@pytest.mark.parametrize("distance", [1, 2, 256, 4096])
def test_neighbouring_ids_are_independent(distance: int) -> None:
    """Pairs of ids at a distance, under one key."""
    u = uniforms(key(7, 1, 42), torch.arange(100_000))
    assert independent(u[:-distance], u[distance:])


def test_neighbouring_positions_seeds_and_purposes_are_independent() -> None:
    """The same token at the next position, with the next seed, and in another purpose's stream."""
    here = column(position_keys(6000))
    assert independent(here[:-1], here[1:])
    assert independent(here, column(position_keys(6000, seed=2)))
    assert independent(here, column([key(1, 2, position) for position in range(6000)]))
    assert independent(here, column([key(1, 3, position, 1) for position in range(6000)]))


def test_the_checker_sees_dependence() -> None:
    """Pairs that share their noise fail the grid."""
    here = column(position_keys(2000))
    assert not independent(here, here)
    assert not independent(here, 1 - here)


def test_keys_tell_order_length_and_parts_apart() -> None:
    """No two of many small tuples share a key, and any integer will do."""
    tuples = [(a, b, c) for a in range(12) for b in range(12) for c in range(12)]
    pairs = [(a, b) for a in range(12) for b in range(12)]
    assert len({key(*parts) for parts in (*tuples, *pairs)}) == len(tuples) + len(pairs)
    assert all(0 <= key(seed, 1, 0) < 1 << 64 for seed in (0, -1, 2**64, 2**200))
    assert mix(1) != mix(2)


def test_a_tokens_noise_does_not_depend_on_the_other_ids() -> None:
    """A gathered subset has the values of the whole."""
    base = key(3, 1, 9)
    whole = uniforms(base, torch.arange(1000))
    some = torch.tensor([999, 5, 17, 17])
    assert torch.equal(uniforms(base, some), whole[some])


def test_truncation_keeps_the_winner() -> None:
    """Where the winner stays in the support, top-k or top-p do not change the draw: noise belongs to the id."""
    generator = torch.Generator().manual_seed(0)
    changed = 0
    for base in range(300):
        probs = torch.rand(50, generator=generator).softmax(-1)
        winner = race(probs, base)
        cut = probs.masked_fill(torch.rand(50, generator=generator) < 0.5, 0)
        drawn = race(cut / cut.sum(), base)
        assert cut[drawn] > 0
        assert drawn == winner or cut[winner] == 0
        changed += drawn != winner
    assert changed > 50, "the cut has to matter for this test to mean anything"


def test_draws_do_not_depend_on_the_batch() -> None:
    """Each row of `draws` is what the row would be alone, and may be asked for in any order and again."""
    probs = torch.rand(6, 20, generator=torch.Generator().manual_seed(1)).softmax(-1)
    positions = [5, 6, 6, 7, 9, 5]
    together = SeededNoise.for_verifier(11, 0).draws(probs, positions)
    assert len(together) == 6
    backwards = [together[node] for node in reversed(range(6))][::-1]
    alone = [SeededNoise.for_verifier(11, 3).draws(probs[n][None], [p])[0] for n, p in enumerate(positions)]
    assert backwards == alone == list(together)


def test_same_position_same_noise() -> None:
    """Two nodes at one position, with one law, draw the same token; so does the same position in another round."""
    noise = SeededNoise.for_verifier(5, 0)
    for position in range(50):
        draws = noise.draws(UNIFORM_4.expand(2, -1), [position, position])
        assert draws[0] == draws[1] == SeededNoise.for_verifier(5, 8).draws(UNIFORM_4[None], [position])[0]


def test_coupling() -> None:
    """A coupled drafter draws as the verifier does; without coupling its draws are unrelated, and new at every call."""
    rows, positions = UNIFORM_4.expand(400, -1), range(400)
    target = list(SeededNoise.for_verifier(5, 0).draws(rows, positions))
    assert list(SeededNoise.for_draft(5, 0, coupled=True).draws(rows, positions)) == target
    noise = SeededNoise.for_draft(5, 0, coupled=False)
    free, again = list(noise.draws(rows, positions)), list(noise.draws(rows, positions))
    for one, other in ((free, target), (free, again)):
        assert 60 < sum(a == b for a, b in zip(one, other, strict=True)) < 140  # 100 expected, 4 sigma is 35
    assert list(SeededNoise.for_draft(5, 0, coupled=False).draws(rows, positions)) == free


def decisions(noise: SeededNoise, count: int) -> list[bool]:
    """A run of fair coins."""
    return [noise.accept(0.5) for _ in range(count)]


def test_accept_is_fresh_reproducible_and_its_own() -> None:
    """Coins of one round repeat with (seed, round) and agree by chance only with those of another or of the draft's."""
    coins = decisions(SeededNoise.for_verifier(1, 0), 400)
    assert coins == decisions(SeededNoise.for_verifier(1, 0), 400)
    others = [
        decisions(SeededNoise.for_verifier(1, 1), 400),
        decisions(SeededNoise.for_verifier(2, 0), 400),
        decisions(SeededNoise.for_draft(1, 0, coupled=False), 400),
    ]
    for other in (*others, coins[1:]):
        assert 160 < sum(a == b for a, b in zip(coins, other, strict=False)) < 240


@pytest.mark.parametrize("prob", [0.02, 0.5, 0.9])
def test_accept_has_the_probability(prob: float) -> None:
    """Binomial test over rounds and lanes."""
    noises = [SeededNoise.for_verifier(3, number) for number in range(500)]
    accepted = sum(noise.accept(prob) for noise in noises for _ in range(8))
    assert stats.binomtest(accepted, 4000, prob).pvalue > ALPHA


def test_accept_at_the_borders() -> None:
    """Nothing has probability 0, everything 1 or more; not-a-number is refused."""
    noise = SeededNoise.for_verifier(4, 0)
    for _ in range(300):
        assert not noise.accept(0.0)
        assert noise.accept(1.0)
        assert noise.accept(math.inf)
        assert not noise.accept(math.nan)


def test_categorical_takes_weights() -> None:
    """Weights need not be normalised: the same noise draws the same token, and zeros are never drawn."""
    weights = torch.tensor([0.0, 0.2, 0.05, 0.0, 0.3])
    one, other = SeededNoise.for_verifier(6, 0), SeededNoise.for_verifier(6, 0)
    drawn = [one.categorical(weights) for _ in range(400)]
    assert drawn == [other.categorical(weights / weights.sum()) for _ in range(400)]
    counts = torch.bincount(torch.tensor(drawn), minlength=5)
    assert counts[0] == counts[3] == 0
    expected = (weights[[1, 2, 4]] / weights.sum() * 400).double().numpy()
    assert stats.chisquare(counts[[1, 2, 4]].double().numpy(), expected * (400 / expected.sum())).pvalue > ALPHA


def test_race_respects_small_probabilities() -> None:
    """A thousand tokens of probability 1e-5 together have 1e-2: the low end of the noise is fine enough for them."""
    probs = torch.full((1001,), 1e-5)
    probs[0] = 0.99
    rare = sum(race(probs, key(8, base)) != 0 for base in range(6000))
    assert stats.binomtest(rare, 6000, 0.01).pvalue > ALPHA


def test_the_low_end_is_not_a_grid() -> None:
    """Small uniforms keep their relative precision: below 2^-10 a float32 grid of 2^-24 would give many ties."""
    small = torch.sort(uniforms(key(9), torch.arange(2_000_000)))[0][:1500]
    assert len(small.unique()) == len(small)


def test_race_with_one_token_left() -> None:
    """A point mass gives its token under any noise."""
    probs = torch.zeros(30)
    probs[17] = 1
    assert {race(probs, base) for base in range(50)} == {17}


def test_fresh_seeds_differ() -> None:
    """Short enough to be typed again, and hardly ever the same."""
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) > 45
    assert all(0 <= seed < 1 << 32 for seed in seeds)


@pytest.mark.parametrize("kind", ["flat", "peaked", "sparse", "one"])
def test_the_kernel_leaves_no_winner_out(kind: str) -> None:
    """Of a wide law it looks at a few tokens only, and the race is won by the same one as among all."""
    if not native.available():
        pytest.skip(native.why_not())
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(50_000, generator=generator) * {"flat": 0.1, "peaked": 4.0, "sparse": 2.0, "one": 1.0}[kind]
    if kind == "sparse":
        logits[torch.randperm(50_000, generator=generator)[300:]] = -torch.inf
    if kind == "one":
        logits[1:] = -torch.inf
    probs = logits.softmax(-1)
    support, few = probs.nonzero().squeeze(-1), 0
    for number in range(300):
        base = key(3, number)
        scores = probs[support].double() / -torch.log1p(-uniforms(base, support).double().clamp(max=1 - 2.0**-24))
        found = native.contenders(probs, base)
        few += len(found)
        assert race(probs, base) == int(support[scores.argmax()])
        assert set(found.tolist()) <= set(support.tolist())
    assert few < 300 * 40
