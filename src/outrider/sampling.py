"""From logits to the target's law `p` at each node of a tree. Pure; knows no models, drafters or random numbers.

Every processor is applied at each node on that node's own history: the committed tokens and the node's draft
ancestors. Zero temperature is the one-hot limit of the same law; without processors it costs one argmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from . import tree as trees
from .errors import BadOption
from .types import Draft, Logprob, Noise, Tree

Processor = Callable[[Tensor, Tensor], Tensor]
"""Transformers' `LogitsProcessor`: (ids [1, L], scores [1, V]) -> scores [1, V]."""


@runtime_checkable
class Pruning(Protocol):
    """A processor that knows before a pass which tokens it will not let through."""

    def fitting(self, tokens: Sequence[int], tree: Tree) -> list[int]:
        """The nodes of a draft that it may let through, node 0 first and none without its parent.

        Args:
            tokens: prompt and committed output, node 0 the last of it.
            tree: the draft.
        """
        ...


@dataclass(frozen=True, slots=True)
class History:
    """What a row has behind it: prompt and committed tokens, the pending one last, and the ids that end it."""

    tokens: Sequence[int]
    prompt_length: int
    eos: tuple[int, ...] = ()


class Law:
    """The law of the next token at each node: a choice per node (greedy), or probabilities [N, V]."""

    def __init__(
        self, probs: Tensor | None = None, choices: Tensor | None = None, logits: Tensor | None = None
    ) -> None:
        self._probs, self._choices, self._logits = probs, choices, logits

    @property
    def greedy(self) -> bool:
        """Whether each node's law is all on one token."""
        return self._choices is not None

    @property
    def probs(self) -> Tensor:
        """[N, V] float; one-hot rows where the law is greedy."""
        if self._probs is None:
            assert self._choices is not None and self._logits is not None
            self._probs = torch.nn.functional.one_hot(self._choices, self._logits.shape[-1]).float()
        return self._probs

    def at(self, node: int) -> Tensor:
        """[V] the probabilities at one node; for a greedy law the other nodes are not worked out."""
        if self._choices is None:
            return self.probs[node]
        assert self._logits is not None
        row = torch.zeros(self._logits.shape[-1], device=self._logits.device)
        row[self._choices[node]] = 1
        return row

    def spread(self, node: int) -> Tensor:
        """[V] the probabilities at one node; where the law is greedy, those at temperature 1, before the choice."""
        if self._choices is None:
            return self.probs[node]
        assert self._logits is not None
        return self._logits[node].float().softmax(-1)

    def draws(self, noise: Noise, positions: Sequence[int]) -> Sequence[int]:
        """The target's own token at each node, where `positions` are the absolute positions of these tokens."""
        if self._choices is not None:
            return [int(choice) for choice in self._choices.tolist()]
        return noise.draws(self.probs, positions)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The names are those of Transformers' `GenerationConfig` and OpenAI's API.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: keep the k likeliest tokens (and those tied with the last of them); 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities reach this sum.
        min_p: keep tokens at least this likely relative to the likeliest.
        repetition_penalty: divides positive logits of tokens in prompt or output, multiplies negative ones
            (Keskar et al., 1909.05858).
        presence_penalty, frequency_penalty: subtracted once, or once per occurrence, for tokens of the output.
        logit_bias: token id -> what is added to its logit.
        min_new_tokens: no end-of-sequence token before that many.
        seed: same seed, same tokens; None draws a fresh one per request, which the output reports.
        processors: further `LogitsProcessor`s, applied after the penalties and before the temperature.

    Raises:
        BadOption: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_new_tokens: int = 0
    seed: int | None = None
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        rules = (
            (self.temperature >= 0 and math.isfinite(self.temperature), "temperature", "0 (greedy) or more"),
            (self.top_k >= 0, "top_k", "0 (off) or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (off)"),
            (0 <= self.min_p <= 1, "min_p", "between 0 (off) and 1"),
            (self.repetition_penalty > 0, "repetition_penalty", "above 0; 1 is off"),
            (self.min_new_tokens >= 0, "min_new_tokens", "0 or more"),
        )
        for holds, name, remedy in rules:
            if not holds:
                raise BadOption(f"{name} is {getattr(self, name)}: it has to be {remedy}.")

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation acts on the logits."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.min_new_tokens
            or self.processors
        )

    def check(self, vocabulary: int) -> None:
        """Refuse what does not fit a model.

        Raises:
            BadOption: `logit_bias` names tokens that there are not.
        """
        for token in self.logit_bias:
            if not 0 <= token < vocabulary:
                raise BadOption(f"logit_bias names token {token}: this model has tokens 0 to {vocabulary - 1}.")

    def for_draft(self) -> Sampling:
        """The same without the caller's own processors, which may keep state and belong to the target alone."""
        return replace(self, processors=()) if self.processors else self

    def fitting(self, tokens: Sequence[int], draft: Draft) -> Draft:
        """A draft without what the processors will refuse anyway, where they can tell."""
        knowing: list[object] = [*self.processors] if len(draft.tree) > 1 else []
        for processor in knowing:
            if isinstance(processor, Pruning):
                draft = draft.keep(processor.fitting(tokens, draft.tree))
        return draft

    def law(self, logits: Tensor, tree: Tree, history: History, nodes: Sequence[int] | None = None) -> Law:
        """The target's law at each node.

        Args:
            logits: [N, V] in any floating type; left unchanged.
            tree: the N nodes; `history.tokens` ends with node 0.
            history: the row's past.
            nodes: the nodes whose laws are wanted, in this order; all of them if not given.
        """
        if self.edits_logits:
            logits = self._edit(logits.float().clone(), tree, history)
        if nodes is not None:
            logits = logits[list(nodes)]
        if self.temperature == 0:
            return Law(choices=likeliest(logits), logits=logits)
        return Law(probs=self._truncate(logits.float() / self.temperature))

    def _edit(self, scores: Tensor, tree: Tree, history: History) -> Tensor:
        ancestors = trees.ancestors(tree.parents)[:, 1:]  # node 0 is in the history already
        drafted = tree.tokens[1:].to(scores.device)
        here = ancestors.to(scores.device, scores.dtype)

        def counts(tokens: Sequence[int]) -> Tensor:
            past = torch.tensor(tokens, dtype=torch.int64, device=scores.device)
            base = torch.bincount(past, minlength=scores.shape[-1]).to(scores.dtype)
            return base.expand_as(scores).clone().index_add_(1, drafted, here)

        if self.repetition_penalty != 1:
            seen = counts(history.tokens) > 0
            penalised = torch.where(scores < 0, scores * self.repetition_penalty, scores / self.repetition_penalty)
            scores = torch.where(seen, penalised, scores)
        if self.presence_penalty or self.frequency_penalty:
            output = counts(history.tokens[history.prompt_length :])
            scores -= self.presence_penalty * (output > 0) + self.frequency_penalty * output
        self.check(scores.shape[-1])
        if self.logit_bias:
            biases = torch.tensor([*self.logit_bias.values()], dtype=scores.dtype, device=scores.device)
            scores[:, [*self.logit_bias]] += biases
        if self.min_new_tokens and history.eos:
            written = len(history.tokens) - history.prompt_length + trees.depths(tree.parents).to(scores.device)
            scores[:, list(history.eos)] = scores[:, list(history.eos)].masked_fill(
                (written < self.min_new_tokens)[:, None], -math.inf
            )
        return self._process(scores, tree, history) if self.processors else scores

    def _process(self, scores: Tensor, tree: Tree, history: History) -> Tensor:
        rows = []
        for node in range(len(tree)):
            path = trees.path_to(tree.parents, node)[1:]
            ids = torch.tensor([[*history.tokens, *tree.tokens[path].tolist()]], device=scores.device)
            row = scores[node : node + 1]
            for processor in self.processors:
                row = processor(ids, row)
            rows.append(row)
        return torch.cat(rows)

    def _truncate(self, scores: Tensor) -> Tensor:
        """Probabilities [N, V] after top-k, top-p and min-p, in Transformers' order. Ties at a border are kept."""
        likeliest = None
        if 0 < self.top_k < scores.shape[-1]:
            likeliest = scores.topk(self.top_k).values
            scores = scores.masked_fill(scores < likeliest[:, -1:], -math.inf)
        probs = scores.softmax(-1)
        if self.top_p < 1:
            ordered = probs.sort(descending=True).values if likeliest is None else probs.topk(self.top_k).values
            needed = ((ordered.cumsum(-1) - ordered) < self.top_p).sum(-1, keepdim=True)
            probs = probs.masked_fill(probs < ordered.gather(-1, needed - 1), 0)
            probs = probs / probs.sum(-1, keepdim=True)
        if self.min_p > 0:
            probs = probs.masked_fill(probs < self.min_p * probs.amax(-1, keepdim=True), 0)
        return probs / probs.sum(-1, keepdim=True)


def likeliest(logits: Tensor) -> Tensor:
    """[N] the likeliest token at each node, the first of equals; on a CPU by numpy, whose argmax is a vector loop."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[Logprob, ...]:
    """What the target thought of tokens that were written, and of the likeliest ones in their places.

    Args:
        logits: [N, V], row i those that token i was chosen by.
        tokens: N of them.
        top: how many of the likeliest are told.
    """
    laws = logits.float().log_softmax(-1)
    best = laws.topk(top)
    rows = zip(laws, tokens, best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(Logprob(float(law[token]), tuple(zip(ids, values, strict=True))) for law, token, ids, values in rows)
