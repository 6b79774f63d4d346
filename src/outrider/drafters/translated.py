"""Universal assisted decoding (Timor et al., 2502.05202): a draft model with another tokenizer than the target's.

`tli` drafts with the tokens that both vocabularies have: the draft model's law restricted to them and renormalised is
the law that tokens are drawn from, so every rule may use it. `slem` drafts freely, likeliest token by likeliest token,
and has the text cut into the target's tokens; such a draft has no law (its law over texts is none over tokens), so it
is a point mass. The target itself is only ever given its own ids, and the draft model is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadOption, VocabularyMismatch
from ..pieces import Pieces
from ..sampling import Sampling
from ..target import Target
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting
from .model import ModelDrafter
from .transcript import Pairing, Transcript

_MODES = ("auto", "tli", "slem")
_ENOUGH = 0.5  # coverage from which `auto` drafts with shared tokens


@dataclass(slots=True)
class _State:
    length: int  # committed tokens of the target
    pending: int
    transcript: Transcript
    inner: Any  # the draft model's own


class Translated(Drafter):
    """Drafts with a model of another vocabulary.

    Args:
        model: the draft model.
        pairing: how its tokens and the target's correspond.
        vocabulary: width of the target's logits.
        mode: "auto", "tli" or "slem".
        name: the draft model's, for reports.

    Raises:
        VocabularyMismatch: `tli` was asked for and no token is shared.
    """

    has_law = True
    makes_trees = True
    reads = True

    def __init__(self, model: Target, pairing: Pairing, vocabulary: int, mode: str = "auto", name: str = "") -> None:
        self._pairing, self._vocabulary = pairing, vocabulary
        self._shared = pairing.shared >= 0
        self._direct = mode == "tli" or (mode == "auto" and pairing.coverage >= _ENOUGH)
        if self._direct and not bool(self._shared.any()):
            raise VocabularyMismatch(
                "The draft model shares no token with the target, so tli has nothing to draft: write translated:slem."
            )
        self._inner = ModelDrafter(model, model.vocabulary, self._shared if self._direct else None)
        self.has_law = self.makes_trees = self._direct
        self.reencodes = not self._direct
        chosen = "tli" if self._direct else "slem"
        self.spec = f"translated:{chosen}:{name}" if name else f"translated:{chosen}"
        why = {
            "auto": f"chosen because that is {'at least' if self._direct else 'under'} {_ENOUGH:.0%}",
            chosen: "as asked for",
        }[mode]
        what = "draws from the shared tokens" if self._direct else "cuts the drafted text into the target's tokens"
        self.note = f"{pairing.coverage:.0%} of the draft model's tokens are the target's too; {chosen}, {why}, {what}."

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Translated:
        """`translated[:auto|tli|slem]:SPEC`, where SPEC names a model as `--target` does.

        Raises:
            BadOption: no model is named, or one of the two has no tokenizer.
            VocabularyMismatch: a tokenizer does not spell text.
        """
        mode, _, name = argument.partition(":")
        if mode not in _MODES:
            mode, name = "auto", argument
        if not name:
            raise BadOption(
                "The drafter 'translated' needs a draft model: write translated:MODEL, or translated:tli:MODEL or "
                "translated:slem:MODEL to choose the method."
            )
        if setting.tokenizer is None:
            raise BadOption("translated needs the target's tokenizer: load the target with it.")
        target = Pieces(setting.tokenizer, "target")
        model, tokenizer = setting.load_model(name)
        if tokenizer is None:
            raise BadOption(f"translated needs the draft model's tokenizer, and {name} has none: save it there.")
        pairing = Pairing(
            target,
            Pieces(tokenizer, "draft model"),
            (*_end(setting.tokenizer), *setting.target.eos),
            (*_end(tokenizer), *model.eos),
            (setting.target.vocabulary, model.vocabulary),
        )
        return cls(model, pairing, setting.target.vocabulary, mode, name)

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; runs the prompt, as the draft model's tokenizer has it, through the draft model."""
        transcript = Transcript(self._pairing, prompt)
        return _State(len(prompt), prompt[-1], transcript, self._inner.begin(transcript.ids, {}))

    @property
    def token_bytes(self) -> int:
        """See `Drafter`."""
        return self._inner.token_bytes

    def room(self, state: _State) -> int:
        """See `Drafter`: the draft model's context counts in its own tokens."""
        return self._inner.room(state.inner)

    def end(self, state: _State) -> None:
        """See `Drafter`."""
        self._inner.end(state.inner)

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`."""
        inner = [state.inner for state in states]
        if self._direct:
            chosen = [self._sampling(sampling) for sampling in samplings]
            told = [
                _Retold(noise, self._pairing.shared, self._vocabulary, state.length - len(state.transcript.ids))
                for noise, state in zip(noises, states, strict=True)
            ]
            drafts = self._inner.propose(inner, budgets, chosen, told)
            return [self._same_tokens(state, draft) for state, draft in zip(states, drafts, strict=True)]
        chains = [replace(budget, nodes=budget.depth) for budget in budgets]
        drafts = self._inner.propose(inner, chains, [Sampling()] * len(states), noises)
        rows = zip(states, drafts, budgets, strict=True)
        return [_same_text(state, draft, budget.depth) for state, draft, budget in rows]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        state.length += len(tokens)
        state.pending = tokens[-1]
        changed = state.transcript.extend(tokens)
        self._inner.replace(state.inner, changed, state.transcript.ids[changed:])

    def _sampling(self, sampling: Sampling) -> Sampling:
        """The same in the draft model's ids."""
        if not sampling.logit_bias:
            return sampling
        shared = self._pairing.shared.tolist()
        bias = {index: sampling.logit_bias[token] for index, token in enumerate(shared) if token in sampling.logit_bias}
        return replace(sampling, logit_bias=bias)

    def _same_tokens(self, state: _State, draft: Draft) -> Draft:
        """A draft of shared tokens, and the law they were drawn from, in the target's ids."""
        shared = self._pairing.shared
        tokens = torch.cat([torch.tensor([state.pending]), shared[draft.tree.tokens[1:]]])
        probs = None if draft.probs is None else _scattered(draft.probs, shared, self._vocabulary)
        return replace(draft, tree=Tree(tokens, draft.tree.parents), probs=probs)


class _Retold:
    """The target's noise for a drafter that draws in other ids: a shared token has the same noise under both.

    Args:
        noise: of the target's ids and positions.
        shared: see `Pairing`.
        vocabulary: width of the target's logits.
        ahead: by how many positions the target's text is longer than the draft model's.
    """

    def __init__(self, noise: Noise, shared: Tensor, vocabulary: int, ahead: int) -> None:
        self._noise, self._shared, self._vocabulary, self._ahead = noise, shared, vocabulary, ahead

    def draws(self, probs: Tensor, positions: Sequence[int]) -> Sequence[int]:
        """See `types.Noise`."""
        places = [position + self._ahead for position in positions]
        drawn = self._noise.draws(_scattered(probs, self._shared, self._vocabulary), places)
        return [int((self._shared == token).nonzero()[0]) for token in drawn]

    def accept(self, prob: float) -> bool:
        """See `types.Noise`."""
        return self._noise.accept(prob)

    def categorical(self, probs: Tensor) -> int:
        """See `types.Noise`."""
        return self._noise.categorical(probs)


def _scattered(probs: Tensor, shared: Tensor, vocabulary: int) -> Tensor:
    """[N, width of the draft model's logits] -> [N, vocabulary], each shared token's column in its place."""
    shared = shared.to(probs.device)
    known = shared >= 0
    out = probs.new_zeros(probs.shape[0], vocabulary)
    out[:, shared[known]] = probs[:, known]
    return out


def _same_text(state: _State, draft: Draft, depth: int) -> Draft:
    """A draft's text in the target's ids; a point mass, since the draft model's law is over other tokens."""
    told = state.transcript.back(draft.tree.tokens[1:].tolist()) if len(draft.tree) > 1 else []
    return Draft(Tree.chain([state.pending, *told[:depth]]), score=draft.score, read=draft.read)


def _end(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
