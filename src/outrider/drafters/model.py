"""An independent draft model with the target's vocabulary (Leviathan et al., 2211.17192).

Its cache lives across rounds and catches up by length: each round begins by feeding whatever it lacks, so full
acceptance, rejection and a fresh prompt are one case. It may live on another device; only ids and, for rules that need
them, probabilities cross over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import BadOption, VocabularyMismatch
from ..kv import KVCache, Seat, gather
from ..sampling import History, Law, Sampling
from ..target import Target, prefill
from ..types import Budget, Draft, Noise, Scores, Tree
from .base import Drafter, Setting

_ENOUGH = 0.9  # share of the smaller vocabulary that has to mean the same tokens


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    seat: Seat
    fed: list[int] = field(default_factory=list)  # what the cache holds, drafts included


class ModelDrafter(Drafter):
    """Drafts chains with a smaller model of the same vocabulary.

    Args:
        model: the draft model.
        vocabulary: width of the target's logits.
        shared: [width of the draft model's logits] bool, ids that mean the target's token; None if all do.
        spec: its name in reports.
    """

    def __init__(self, model: Target, vocabulary: int, shared: Tensor | None = None, spec: str = "model") -> None:
        self._model, self._vocabulary, self.spec = model, vocabulary, spec
        self._banned = None if shared is None else ~shared.to(model.device)

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> ModelDrafter:
        """`model:SPEC`, where SPEC names a model as `--target` does."""
        if not argument:
            raise BadOption("The drafter 'model' needs a draft model: write model:FOLDER, model:FILE.gguf or model:ID.")
        model, tokenizer = setting.load_model(argument)
        shared = None
        if tokenizer is not None and setting.tokenizer is not None:
            shared = shared_ids(setting.tokenizer.get_vocab(), tokenizer.get_vocab(), model.vocabulary)
        elif model.vocabulary != setting.target.vocabulary:
            raise VocabularyMismatch(
                f"The draft model has {model.vocabulary} tokens, the target {setting.target.vocabulary}, and there are "
                "no tokenizers to compare: give both tokenizers, or a draft model of the target's family."
            )
        return cls(model, setting.target.vocabulary, shared, f"model:{argument}")

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`; runs the prompt through the draft model."""
        state = _State(list(prompt), len(prompt), Seat(self._model.new_cache(1, len(prompt) + 64)))
        if len(prompt) <= self._model.context:
            state.fed = list(prompt[:-1])
            prefill(self._model, self._known(state.fed), state.seat.cache)
        return state

    def room(self, state: _State) -> int:
        """See `Drafter`: the last drafted token needs a position too, for it may ride along in another row's pass."""
        return max(0, self._model.context - len(state.tokens))

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; one pass of the draft model per step for all rows together."""
        tokens: list[list[int]] = [[] for _ in states]
        laws: list[list[Law]] = [[] for _ in states]
        active = [row for row, budget in enumerate(budgets) if budget.depth > 0]
        if active:
            cache = gather([states[row].seat for row in active])
            scores = self._catch_up([states[row] for row in active], cache)
            for step in range(max(budgets[row].depth for row in active)):
                for place, row in enumerate(active):
                    if step < budgets[row].depth:
                        law = self._law(scores[place], states[row], tokens[row], samplings[row])
                        position = len(states[row].tokens) + step
                        tokens[row].append(int(law.draws(noises[row], [position])[0]))
                        laws[row].append(law)
                feeding = [step + 1 < budgets[row].depth for row in active]
                if any(feeding):
                    scores = self._feed(active, states, tokens, feeding, cache)
        return [
            Draft(
                Tree.chain([state.tokens[-1], *drafted]), q := _q(drawn_from, sampling), "point" if q is None else "iid"
            )
            for state, drafted, drawn_from, sampling in zip(states, tokens, laws, samplings, strict=True)
        ]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        self.replace(state, len(state.tokens), tokens)

    def replace(self, state: _State, start: int, tokens: Sequence[int]) -> None:
        """Commit these tokens in the place of those from `start` on; keep of the cache what agrees with them."""
        state.tokens[start:] = tokens
        limit = min(len(state.fed), len(state.tokens) - 1)
        agreed = min(start, limit)
        while agreed < limit and state.fed[agreed] == state.tokens[agreed]:
            agreed += 1
        del state.fed[agreed:]
        state.seat.cache.crop(state.seat.row, agreed)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The tokens with ids that the draft model lacks replaced by its last one: a worse draft, no wrong output."""
        return [min(token, self._model.vocabulary - 1) for token in tokens]

    def _catch_up(self, states: Sequence[_State], cache: KVCache) -> list[Scores]:
        """Feed what each row's cache lacks; scores after the pending token."""
        missing = [state.tokens[len(state.fed) :] for state in states]
        scores = self._model.forward([Tree.chain(self._known(part)) for part in missing], cache, last_only=True)
        cache.keep([range(len(part)) for part in missing])
        for state, part in zip(states, missing, strict=True):
            state.fed.extend(part)
        return scores

    def _feed(
        self,
        active: Sequence[int],
        states: Sequence[_State],
        tokens: Sequence[Sequence[int]],
        feeding: Sequence[bool],
        cache: KVCache,
    ) -> list[Scores]:
        """Feed each row's newest draft token; rows that are done ride along and keep nothing."""
        scores = self._model.forward([Tree.chain([tokens[row][-1]]) for row in active], cache, last_only=True)
        cache.keep([(0,) if feeds else () for feeds in feeding])
        for row, feeds in zip(active, feeding, strict=True):
            if feeds:
                states[row].fed.append(tokens[row][-1])
        return scores

    def _law(self, scores: Scores, state: _State, drafted: Sequence[int], sampling: Sampling) -> Law:
        """The drafter's law after the tokens drafted so far, over the target's vocabulary."""
        logits = scores.logits
        if self._banned is not None:
            logits = logits.masked_fill(self._banned, -math.inf)
        width = logits.shape[-1]
        if width < self._vocabulary:
            logits = torch.nn.functional.pad(logits, (0, self._vocabulary - width), value=-math.inf)
        history = [*state.tokens, *drafted] if sampling.edits_logits else state.tokens
        tree = Tree.chain([drafted[-1] if drafted else state.tokens[-1]])
        return sampling.for_draft().law(logits[:, : self._vocabulary], tree, History(history, state.prompt_length))


def _q(laws: Sequence[Law], sampling: Sampling) -> Tensor | None:
    """[len(laws), V] the laws that were drawn from; None where the draft was greedy."""
    return torch.cat([law.probs for law in laws]) if laws and sampling.temperature > 0 else None


def shared_ids(target: Mapping[str, int], drafter: Mapping[str, int], width: int) -> Tensor | None:
    """Which ids of the drafter mean the token that they mean to the target, decided on the maps themselves.

    Args:
        target, drafter: token -> id of both tokenizers.
        width: of the drafter's logits, padding included.

    Returns:
        [width] bool, or None if every id of the drafter is shared.

    Raises:
        VocabularyMismatch: less than nine tenths of the smaller vocabulary are shared.
    """
    common = [index for token, index in drafter.items() if index < width and target.get(token) == index]
    share = len(common) / max(1, min(len(target), len(drafter)))
    if share < _ENOUGH:
        raise VocabularyMismatch(
            f"The draft model shares {share:.0%} of its token ids with the target, so its drafts would be other words: "
            "choose a draft model of the target's family, or draft across tokenizers with translated:MODEL."
        )
    if len(common) == width:
        return None
    mask = torch.zeros(width, dtype=torch.bool)
    mask[common] = True
    return mask
