"""Counter-based noise: what is drawn depends on what it is drawn for, never on what was drawn before.

Under the `match` rule the noise of a token is keyed by (seed, absolute position, token id), so that the same seed gives
the same tokens whatever the drafter, the batch or the draft length. Accept-and-residual rules need noise that is
independent of the draft's, and keyed by (seed, round, lane): keyed by position they would be biased (ALGORITHMS 1).

Drawing is an exponential race: of exponentials E_i, the smallest E_i / p_i belongs to i with probability p_i. It is
the Gumbel-max trick (Maddison et al., 1411.0030) with one logarithm less. Knows no models.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from . import native

_MASK = (1 << 64) - 1
_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MANY = 1024  # tokens of a law from which a kernel is worth calling
_MATCH, _DRAFT, _VERIFY = 1, 2, 3  # purposes: streams that never meet


def fresh_seed() -> int:
    """A seed nobody has chosen, short enough to be read out and typed in again."""
    return secrets.randbits(32)


def mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014): 64 bits in, 64 well-mixed bits out."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK
    return value ^ (value >> 31)


def key(*parts: int) -> int:
    """One 64-bit key from several integers, their order included."""
    state = 0
    for part in parts:
        state = mix(state + _STEP + mix(part + _STEP))
    return state


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def uniforms(base: int, ids: Tensor) -> Tensor:
    """A float32 uniform in (0, 1] for each token id [K], keyed by (base, id); the same on every device.

    Small values keep full relative precision (53 random bits before rounding): they decide races.
    """
    x = ids * _signed(_STEP) + _signed(base)
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(_MIX1)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(_MIX2)
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return (((x >> 11) & ((1 << 53) - 1)).double() + 0.5).mul_(2.0**-53).float()


def race(probs: Tensor, base: int) -> int:
    """A token drawn from `probs` [V] with the noise of `base`. Only what can win is looked at, or else the support."""
    quick = probs.device.type == "cpu" and probs.dtype == torch.float32 and probs.shape[0] >= _MANY
    if quick and native.available():
        support = native.contenders(probs.contiguous(), base)
    else:
        support = probs.nonzero().squeeze(-1)
    u = uniforms(base, support).clamp_(max=1 - 2.0**-24)
    exponentials = torch.log1p(u.neg_()).neg_()
    return int(support[(probs[support] / exponentials).argmax()])


class _Draws(Sequence[int]):
    """Draws made when they are looked at: a verifier that stops early pays for no more."""

    def __init__(self, probs: Tensor, keys: list[int]) -> None:
        self._probs, self._keys = probs, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, node: int) -> int:  # type: ignore[override]
        return race(self._probs[node], self._keys[node])


class SeededNoise:
    """The noise of one round. `coupled` makes the drafter draw with the target's own noise.

    Coupling is valid under `match` only, where it raises agreement to at least (1 - TV) / (1 + TV) (Daliri et al.,
    2408.07978); under accept-and-residual rules it biases the output.
    """

    def __init__(self, seed: int, number: int, purpose: int, coupled: bool = False) -> None:
        self._seed, self._number, self._purpose, self._coupled = seed, number, purpose, coupled
        self._lane = 0

    @classmethod
    def for_draft(cls, seed: int, number: int, coupled: bool) -> SeededNoise:
        """What the drafter of round `number` draws with."""
        return cls(seed, number, _DRAFT, coupled)

    @classmethod
    def for_verifier(cls, seed: int, number: int) -> SeededNoise:
        """What the verifier of round `number` draws with."""
        return cls(seed, number, _VERIFY, coupled=True)

    def _next_key(self) -> int:
        self._lane += 1
        return key(self._seed, self._purpose, self._number, self._lane)

    def draws(self, probs: Tensor, positions: Sequence[int]) -> Sequence[int]:
        """See `types.Noise`; without coupling the draws are fresh."""
        if self._coupled:
            return _Draws(probs, [key(self._seed, _MATCH, position) for position in positions])
        return _Draws(probs, [self._next_key() for _ in positions])

    def accept(self, prob: float) -> bool:
        """See `types.Noise`."""
        return (self._next_key() >> 11) * 2.0**-53 < prob

    def categorical(self, probs: Tensor) -> int:
        """See `types.Noise`."""
        return race(probs, self._next_key())
