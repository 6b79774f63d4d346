"""Our drafters on vLLM's engine, by its `custom_class` method (read in vLLM 0.32: `custom_class_proposer.py` under
`v1/spec_decode`, `gpu_model_runner.py` under `v1/worker`).

    vllm serve MODEL --speculative-config \
        '{"method": "custom_class", "model": "outrider.vllm.SuffixProposer", "num_speculative_tokens": 8}'

What else there is to say goes into `--additional-config '{"outrider": {"drafter": "suffix:factor=3", "policy":
"goodput"}}'`. vLLM hands over texts and nothing else, neither hidden states nor the names of its requests, so drafters
that follow from text alone serve here, and a request is known by its text. vLLM checks drafts as choices without a law,
which keeps its output's law at any temperature.

Nothing of vLLM is imported, and no model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch

from .drafters import Drafter, Setting, make_drafter
from .errors import BadOption
from .noise import SeededNoise
from .policy import Maker, Policy, make_policy
from .policy import Setting as PolicySetting
from .sampling import Sampling
from .target import Target
from .types import Budget, Draft, Round, Scores, Tree

Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]

_KEYS = {"drafter", "policy"}


@dataclass(slots=True, eq=False)
class _Request:
    """A request under way: its text so far, and what drafter and policy know of it."""

    index: int
    text: Ids
    state: Any
    policy: Policy
    rounds: int = 0
    drafted: Tree | None = None  # what vLLM was given to check
    missing: int = 0

    @property
    def tree(self) -> Tree:
        """The latest draft; nothing but the pending token where there was none."""
        return self.drafted if self.drafted is not None else Tree.chain([int(self.text[-1])])


@dataclass(frozen=True, slots=True)
class _Seen:
    """A row of vLLM's batch: its request, the tokens that were sampled, and whether the request was known before."""

    request: _Request
    sampled: list[int]
    known: bool


class TextProposer:
    """A proposer for vLLM around a drafter that follows from text alone.

    Args:
        vllm_config: vLLM's own; `num_speculative_tokens` bounds drafts, `max_model_len` texts.

    Raises:
        BadOption: an option in `additional_config["outrider"]` that cannot be used.
    """

    default = ""
    kind = ""

    def __init__(self, vllm_config: Any) -> None:
        options = _options(vllm_config)
        self._longest: int = vllm_config.speculative_config.num_speculative_tokens
        self._context: int = vllm_config.model_config.max_model_len
        # A request that vLLM lets wait comes back later, read anew if need be. In a pipeline each waits for its turn.
        self._patience = 2 * (vllm_config.parallel_config.pipeline_parallel_size - 1)
        self.drafter = self._make(options.get("drafter", self.default), vllm_config.model_config)
        about = PolicySetting(self.drafter.spec, has_law=False)
        self._policy: Maker = make_policy(options.get("policy", f"fixed:{self._longest}"), about)
        self._requests: list[_Request] = []
        self._count = 0
        self._began, self._proposed, self._drafting = 0.0, 0.0, 0.0

    def _make(self, spec: str, model_config: Any) -> Drafter:
        if spec.partition(":")[0] != self.kind:
            raise BadOption(f"{type(self).__name__} drafts with {self.kind!r}, not {spec!r}: choose the other class.")
        drafter = make_drafter(spec, _setting(spec, model_config))
        drafter.check_prediction(())  # nobody can give one here
        if not drafter.from_text:
            raise BadOption(
                f"vLLM hands over texts alone, and {spec!r} needs more: name drafters like suffix and lookup, or use "
                "vLLM's own method for drafters with a model."
            )
        return drafter

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Ids,
        token_ids_cpu: Ids,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Called by vLLM after each of its passes.

        Args:
            sampled_token_ids: by row, what was just sampled: accepted draft tokens and one more; nothing while a
                prompt is being read.
            num_tokens_no_spec: [rows or more] length of each text, with what was sampled.
            token_ids_cpu: [rows or more, max_model_len] the texts.
            slot_mappings: where keys lie, which plays no part.

        Returns:
            By row, the tokens to check next; nothing where there is nothing to draft.
        """
        began = perf_counter()
        texts = [token_ids_cpu[row, : num_tokens_no_spec[row]] for row in range(len(sampled_token_ids))]
        rows = self._rows(texts, sampled_token_ids)
        if all(row is not None and row.known and row.sampled for row in rows):
            self._observe([row for row in rows if row is not None], began - self._proposed)
        for row, text in zip(rows, texts, strict=True):
            if row is not None:
                self._commit(row, text)
        drafts = self._drafts([row.request for row in rows if row is not None and row.sampled])
        self._proposed = perf_counter()
        self._drafting = self._proposed - began
        return [[] if row is None else drafts.get(row.request.index, []) for row in rows]

    def load_model(self, model: object) -> None:
        """Called by vLLM once it has loaded its model: there is none to load here."""

    def _rows(self, texts: Sequence[Ids], sampled: Sequence[Sequence[int]]) -> list[_Seen | None]:
        """Whose rows these are; those that stay away end, and what they wrote is known to those that begin."""
        left: dict[int, list[_Request]] = {}
        for request in self._requests:
            left.setdefault(len(request.text), []).append(request)
        rows: list[_Seen | None] = []
        for text, new in zip(texts, sampled, strict=True):
            before = text[: len(text) - len(new)]
            found = next((one for one in left.get(len(before), []) if np.array_equal(one.text, before)), None)
            if found is not None:
                left[len(before)].remove(found)
                found.missing = 0
            rows.append(None if found is None else _Seen(found, list(map(int, new)), known=True))
        for request in (one for some in left.values() for one in some):
            request.missing += 1
            if request.missing > self._patience:
                self._end(request)
        for place, (text, new) in enumerate(zip(texts, sampled, strict=True)):
            if rows[place] is None and 0 < len(new) < len(text):
                request = self._begin(text[: len(text) - len(new)])
                rows[place] = _Seen(request, list(map(int, new)), known=False)
        return rows

    def _begin(self, prompt: Ids) -> _Request:
        state = self.drafter.begin(prompt.tolist(), {})
        request = _Request(self._count, prompt.copy(), state, self._policy())
        self._count += 1
        self._requests.append(request)
        return request

    def _end(self, request: _Request) -> None:
        self._requests.remove(request)
        self.drafter.end(request.state)

    def _observe(self, rows: Sequence[_Seen], seconds: float) -> None:
        """Tell the policies of the pass that is over, in which no prompt was read: such a pass takes another time."""
        self._began += 1.0  # a pass is known by it; the policies need no clock
        nodes = sum(len(row.request.tree) for row in rows)
        for place, row in enumerate(rows):
            request = row.request
            round_ = Round(
                request=request.index,
                number=request.rounds,
                start=len(request.text),
                tree=request.tree,
                path=tuple(range(len(row.sampled))),
                tokens=tuple(row.sampled),
                finish=None,
                draft_seconds=self._drafting,
                verify_seconds=seconds,
                rows=len(rows),
                nodes=nodes,
                place=place,
                began=self._began,
            )
            request.policy.observe(round_)

    def _commit(self, row: _Seen, text: Ids) -> None:
        """Tell the drafter what was sampled."""
        if not row.sampled:
            return
        request = row.request
        nodes = max(len(request.tree), len(row.sampled))
        path = tuple(range(len(row.sampled)))
        self.drafter.commit(request.state, row.sampled, Scores(torch.empty(nodes, 0)), path)
        request.text, request.drafted = text.copy(), None
        request.rounds += 1

    def _drafts(self, requests: Sequence[_Request]) -> dict[int, list[int]]:
        """Request -> the tokens of its draft."""
        budgets = [self._budget(request) for request in requests]
        drafts: list[Draft] = []
        if requests:
            noises = [SeededNoise.for_draft(0, request.rounds, False) for request in requests]
            drafts = self.drafter.propose(
                [request.state for request in requests], budgets, [Sampling()] * len(requests), noises
            )
        for request, draft in zip(requests, drafts, strict=True):
            request.drafted = draft.tree
        return {one.index: one.tree.tokens[1:].tolist() for one in requests}

    def _budget(self, request: _Request) -> Budget:
        """A chain no longer than the policy, vLLM's configuration and the context allow."""
        room = self._context - len(request.text) - 1
        return Budget(max(0, min(request.policy.budget().depth, self._longest, room)))


class SuffixProposer(TextProposer):
    """The commonest continuation of the last tokens, in this text and in finished ones; see `drafters/suffix.py`."""

    default = kind = "suffix"


class CascadeProposer(TextProposer):
    """Two such drafters in turn: the second where the first expects too little; see `drafters/cascade.py`."""

    kind = "cascade"
    default = "cascade:suffix,lookup"


PROPOSERS: dict[str, type[TextProposer]] = {one.kind: one for one in (SuffixProposer, CascadeProposer)}
"""The first word of a drafter's spec -> who drafts with it."""


def path_of(proposer: type[TextProposer]) -> str:
    """A proposer as `--speculative-config` names it."""
    return f"{proposer.__module__}.{proposer.__name__}"


def _options(vllm_config: Any) -> Mapping[str, str]:
    """What `--additional-config` says to us.

    Raises:
        BadOption: it is no object, or has other keys than there are, or values that are no text.
    """
    additional = getattr(vllm_config, "additional_config", None)
    options = additional.get("outrider", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(options, Mapping) or not all(isinstance(value, str) for value in options.values()):
        raise BadOption('additional_config["outrider"] has to be an object of texts: {"drafter": "suffix:factor=3"}.')
    unknown = sorted(set(options) - _KEYS)
    if unknown:
        raise BadOption(f'additional_config["outrider"] has no option {unknown[0]!r}: choose of drafter, policy.')
    return options


def _setting(spec: str, model_config: Any) -> Setting:
    """What a drafter may use while it is made: of vLLM's model its tokenizer alone, where a corpus is to be read."""

    def no_models(name: str) -> tuple[Target, Any]:
        raise BadOption(f"The drafter {spec!r} wants the model {name!r}: give it to vLLM, by its method draft_model.")

    tokenizer = None
    if "corpus=" in spec:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_config.tokenizer)
    return Setting(cast(Target, None), tokenizer, no_models)
