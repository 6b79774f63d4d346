"""Output that fits a JSON schema: tokens that cannot go on towards it have no probability. Needs the extra `grammar`.

The grammar is llguidance's. One request's `Grammar` is a processor like any other, asked at each node of a draft with
that node's own history, and it prunes drafts before the target's pass: what cannot be written is not worth a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import tree as trees
from .errors import BadOption
from .types import Tree

_SPACE = r"\n? {0,64}"  # between JSON's parts; without a limit a model that is unsure writes blanks for ever


class Grammars:
    """Compiles schemas for one tokenizer.

    Args:
        tokenizer: Transformers', a fast one.
        vocabulary: width of the target's logits.
        eos: ids that end its output.

    Raises:
        BadOption: llguidance is not installed, or cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, eos: Sequence[int]) -> None:
        try:
            import llguidance
            import llguidance.hf
        except ImportError as error:
            raise BadOption(
                "JSON schemas take an extra that is not installed: pip install 'outrider[grammar]'."
            ) from error
        if not eos:
            raise BadOption("This model has no token that ends its output, so nothing could end a JSON document.")
        self._library, self._eos = llguidance, tuple(eos)
        try:
            self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(eos))
        except Exception as error:  # whatever a foreign reader makes of a foreign tokenizer
            raise BadOption("llguidance cannot read this model's tokenizer: leave the schema out.") from error

    def compile(self, schema: Mapping[str, Any]) -> Any:
        """A schema, ready for `Grammar`.

        Raises:
            BadOption: it cannot be kept; the message says why.
        """
        library = self._library
        text = library.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": _SPACE})
        limits = library.LLParserLimits(verbose_errors=False)
        matcher = library.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            reason = " ".join(str(matcher.get_error()).split())[:200].rstrip(".")
            raise BadOption(f"The schema cannot be used ({reason}): mend or simplify it.")
        return matcher

    def start(self, compiled: Any, prompt_length: int) -> Grammar:
        """A processor for one request.

        Args:
            compiled: what `compile` gave.
            prompt_length: tokens before the output.
        """
        return Grammar(compiled.deep_copy(), prompt_length, self._eos)


class Grammar:
    """Transformers' `LogitsProcessor` that keeps one request's output in a grammar; made by `Grammars.start`."""

    def __init__(self, matcher: Any, prompt_length: int, eos: Sequence[int]) -> None:
        self._matcher, self._prompt_length, self._eos = matcher, prompt_length, frozenset(eos)
        self._at: list[int] = []  # the output that the matcher has read

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Take away what cannot follow.

        Args:
            ids: [1, L] prompt and output.
            scores: [1, V].
        """
        if not self._go(ids[0, self._prompt_length :].tolist()):
            return scores  # behind a token that cannot be written nobody looks
        bias = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8)
        allowed = torch.from_numpy(bias != 0).to(scores.device)
        return scores.masked_fill(~allowed, -torch.inf)

    def fitting(self, tokens: Sequence[int], tree: Tree) -> list[int]:
        """The nodes of a draft that can still be written, node 0 always.

        Args:
            tokens: prompt and committed output, node 0 the last of it.
            tree: the draft.
        """
        written, kept = list(tokens[self._prompt_length :]), [0]
        parents, drafted = tree.parents.tolist(), tree.tokens.tolist()
        for node in range(1, len(tree)):
            if parents[node] in kept:
                path = [drafted[step] for step in trees.path_to(tree.parents, node)[1:]]
                if self._can_follow([*written, *path[:-1]], path[-1]):
                    kept.append(node)
        return kept

    def _can_follow(self, written: list[int], token: int) -> bool:
        if token in self._eos:
            return self._go(written) and bool(self._matcher.is_accepting())
        return self._go([*written, token])

    def _go(self, written: list[int]) -> bool:
        """Bring the matcher to where this has been written; False if it cannot have been."""
        same, most = 0, min(len(written), len(self._at))
        while same < most and written[same] == self._at[same]:
            same += 1
        if same < len(self._at):
            self._matcher.rollback(len(self._at) - same)
        read = int(self._matcher.try_consume_tokens(written[same:]))
        self._at = written[: same + read]
        return same + read == len(written)
