"""The library's face: load a model with a drafter, generate, stream. Everything here only connects the rooms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch

from . import combinations, drafters, policy, verify
from .draft_models import DraftModels
from .engine import PREFILL_CHUNK, Engine
from .errors import BadOption
from .loading import DEMO, DeviceMap, Fast, Loaded, Loader, as_dtype
from .noise import fresh_seed
from .prefix import PREFIX_MEMORY, Prefixes
from .row import Request, Row
from .sampling import Sampling
from .stats import Stats
from .target import Target
from .text import Prediction, Prompt, as_batch, as_predictions, encode, encode_prediction
from .types import FinishReason, Round
from .verify import Verifier


@dataclass(frozen=True, slots=True)
class Output:
    """One finished request.

    Attributes:
        text: what was written, without stop strings and special tokens.
        token_ids: what was written, EOS included.
        finish_reason: "stop" (EOS or a stop string) or "length" (budget or context); None if it was
            stopped on the way.
        rounds: every round, in order.
        seed: the same seed gives the same tokens again.
        prompt_ids: the prompt as the target saw it.
        exactness: "bits" if speculation cannot change a logit, "ties" if it may by rounding, so that a near tie can
            flip.
        reused: prompt tokens whose keys were known from an earlier request.
        verifier: the rule that decided.
        lossless: whether the rule keeps the target's law; if not, `stats.mean_tv` and `stats.mean_kl` say how far the
            output is from it.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    rounds: list[Round]
    seed: int
    prompt_ids: tuple[int, ...]
    exactness: str
    reused: int
    verifier: str
    lossless: bool

    @property
    def stats(self) -> Stats:
        """The figures of this output's rounds."""
        return Stats.of(self.rounds)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the text (possibly nothing yet), and the round itself."""

    text: str
    round: Round


class Stream(Iterator[Piece]):
    """An answer under way. Iterating writes it; leaving early, or `stop`, ends the request.

    Attributes:
        output: what has been written so far, as an `Output`; complete once the iterator is exhausted.
    """

    def __init__(
        self, events: Iterator[tuple[Row, Round]], request: Request, exactness: str, verifier: Verifier
    ) -> None:
        self._events, self._request, self._exactness, self._verifier = events, request, exactness, verifier
        self._row: Row | None = None
        self._rounds: list[Round] = []

    def __next__(self) -> Piece:
        self._row, round_ = next(self._events)
        self._rounds.append(round_)
        return Piece(self._row.told(), round_)

    def stop(self) -> None:
        """End the request here."""
        self._events = iter(())

    @property
    def output(self) -> Output:
        """See the class."""
        return _output(self._request, self._row, self._rounds, self._exactness, self._verifier)


class Batch(Iterator[Round]):
    """Requests under way together. Iterating serves them, round by round: `Round.request` says whose a round is, and
    rounds of one pass follow each other. Leaving early ends them.

    Attributes:
        outputs: what has been written so far, one per prompt; complete once the iterator is exhausted.
    """

    def __init__(
        self, events: Iterator[tuple[Row, Round]], requests: Sequence[Request], exactness: str, verifier: Verifier
    ) -> None:
        self._events, self._requests, self._exactness, self._verifier = events, requests, exactness, verifier
        self._rows: dict[int, Row] = {}
        self._rounds: list[list[Round]] = [[] for _ in requests]

    def __next__(self) -> Round:
        row, round_ = next(self._events)
        self._rows[row.index] = row
        self._rounds[row.index].append(round_)
        return round_

    @property
    def outputs(self) -> list[Output]:
        """See the class."""
        return [
            _output(request, self._rows.get(index), rounds, self._exactness, self._verifier)
            for index, (request, rounds) in enumerate(zip(self._requests, self._rounds, strict=True))
        ]


class Outrider:
    """A target with a drafter, ready to generate. Made by `load`.

    Attributes:
        target: the model in the loop.
        tokenizer: Transformers' tokenizer, or None.
        drafter, verifier: the parts in force.
        folder: where the target's files lie, if in a folder.
        exactness: see `Output`.
    """

    def __init__(
        self,
        loaded: Loaded,
        draft_models: DraftModels,
        drafter: str,
        verifier: str,
        policy_spec: str,
        prefill_chunk: int,
        prefixes: Prefixes,
    ) -> None:
        self._loaded, self._draft_models, self._chunk, self._prefixes = loaded, draft_models, prefill_chunk, prefixes
        self._specs = (drafter, verifier, policy_spec)
        self.verifier: Verifier = verify.make_verifier(verifier)
        self.target: Target = loaded.target
        self.tokenizer: Any = loaded.tokenizer
        self.folder: Path | None = loaded.folder
        self.exactness = self.target.exactness
        kind = drafters.drafter_class(drafter)
        budget = policy.make_policy(policy_spec, policy.Setting(drafter, kind.has_law))().budget()
        combinations.check(self.verifier, kind, drafter, budget)  # before a draft model is read
        setting = drafters.Setting(self.target, self.tokenizer, draft_models.load, self.folder)
        self.drafter = drafters.make_drafter(drafter, setting)
        combinations.check(self.verifier, self.drafter, drafter, budget)  # it may do less than its kind
        branches = self.drafter.makes_trees and not self.verifier.chains_only
        self._knows = policy.Setting(self.drafter.spec or drafter, self.drafter.has_law, branches)
        self._make_policy = policy.make_policy(policy_spec, self._knows)

    @property
    def configuration(self) -> dict[str, str]:
        """What is in force, for reports."""
        note = {"note": self.drafter.note} if self.drafter.note else {}
        return {
            "target": self._loaded.name,
            "drafter": self.drafter.spec,
            "verifier": self.verifier.spec,
            "policy": self._specs[2],
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "device": str(self.target.device),
            "build": self.target.build,
            "quantize": self._draft_models.loader.quantize or "none",
            "exactness": self.exactness,
            **note,
        }

    def using(self, drafter: str | None = None, verifier: str | None = None, policy: str | None = None) -> Outrider:
        """The same target with other parts around it; what is not given stays as it is. Weights are shared, and
        so are the prefixes of finished requests."""
        given = (drafter, verifier, policy)
        specs = [new if new is not None else old for new, old in zip(given, self._specs, strict=True)]
        return Outrider(self._loaded, self._draft_models, specs[0], specs[1], specs[2], self._chunk, self._prefixes)

    @property
    def asked_drafter(self) -> str:
        """The drafter's spec as it was asked for, without what was filled in."""
        return self._specs[0]

    def policies(self, spec: str | None = None) -> policy.Maker:
        """What makes a policy for each request of an engine: the usual one, or another kind for single requests.

        Raises:
            BadOption: there is no such policy, or it does not go with the drafter and the rule.
        """
        if spec is None:
            return self._make_policy
        budget = policy.make_policy(spec, self._knows)().budget()
        combinations.check(self.verifier, self.drafter, self._knows.drafter, budget)
        return policy.make_policy(spec, self._knows)

    @overload  # a string is a sequence of strings to mypy; `as_batch` tells them apart
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = ...,
        max_new_tokens: int = ...,
        stop: str | Sequence[str] | None = ...,
        prediction: Prediction | None = ...,
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        sampling: Sampling | None = ...,
        max_new_tokens: int = ...,
        stop: str | Sequence[str] | None = ...,
        prediction: Sequence[Prediction] | None = ...,
    ) -> list[Output]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        prediction: Prediction | Sequence[Prediction] | None = None,
    ) -> Output | list[Output]:
        """Write an answer, or one per prompt of a batch.

        Args:
            prompt: text, a list of chat messages, a list of ids; or a list of those, served together.
            sampling: greedy if not given. Its seed serves every prompt of a batch, so each equals its run alone.
            max_new_tokens: exactly how many tokens may be written.
            stop: a string or several that end the output.
            prediction: the text that you expect, or its ids, for the drafter "reference"; of a batch a list of them,
                one per prompt. It influences speed only.

        Raises:
            BadPrompt, BadOption: before any work, with the remedy.
        """
        prompts, batched = as_batch(prompt)
        predictions = as_predictions(prediction, len(prompts), batched)
        requests = self._requests(prompts, sampling or Sampling(), max_new_tokens, stop, predictions)
        batch = self._started(requests)
        for _ in batch:
            pass
        return batch.outputs if batched else batch.outputs[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        prediction: Sequence[Prediction] | None = None,
    ) -> Batch:
        """Answer several prompts together and yield every round as it is done. See `generate`."""
        predictions = as_predictions(prediction, len(prompts), True)
        return self._started(self._requests(prompts, sampling or Sampling(), max_new_tokens, stop, predictions))

    def _started(self, requests: Sequence[Request]) -> Batch:
        return Batch(self.engine().run(requests), requests, self.exactness, self.verifier)

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        prediction: Prediction | None = None,
    ) -> Stream:
        """Write one answer and yield it round by round. Leaving the iterator early ends the request. See `generate`."""
        prompts, batched = as_batch(prompt)
        if batched:
            raise BadOption("stream takes one prompt: call generate for a batch.")
        predictions = as_predictions(prediction, 1, False)
        requests = self._requests(prompts, sampling or Sampling(), max_new_tokens, stop, predictions)
        return Stream(self.engine().run(requests), requests[0], self.exactness, self.verifier)

    def engine(self) -> Engine:
        """A fresh loop over these parts, for callers that send requests in and out themselves."""
        return Engine(
            self.target,
            self.drafter,
            self.verifier,
            self._make_policy,
            self.tokenizer,
            self._chunk,
            self._prefixes,
        )

    def _requests(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        max_new_tokens: int,
        stop: str | Sequence[str] | None,
        predictions: Sequence[Prediction | None],
    ) -> list[Request]:
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        requests = []
        for prompt, prediction in zip(prompts, predictions, strict=True):
            if self.tokenizer is None and not all(isinstance(part, int) for part in prompt):
                raise BadOption("Text prompts need a tokenizer: pass tokenizer= to load, or give token ids.")
            ids = tuple(encode(self.tokenizer, prompt))
            seed = fresh_seed() if sampling.seed is None else sampling.seed
            expected = () if prediction is None else encode_prediction(self.tokenizer, prediction)
            request = Request(ids, sampling, seed, max_new_tokens, stops, expected)
            request.check(self.target.context, self.target.vocabulary)
            self.drafter.check_prediction(expected)
            requests.append(request)
        return requests


def _output(request: Request, row: Row | None, rounds: list[Round], exactness: str, verifier: Verifier) -> Output:
    """What a request has come to; nothing yet if it never had a round."""
    text, ids, finish, reused = ("", [], None, 0) if row is None else (row.text, row.output, row.finish, row.reused)
    rule = (verifier.spec, verifier.lossless)
    return Output(text, ids, finish, rounds, request.seed, request.prompt, exactness, reused, *rule)


def load(
    target: Any = DEMO,
    drafter: str = drafters.DEFAULT,
    verifier: str = verify.DEFAULT,
    policy: str = policy.DEFAULT,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    tokenizer: Any = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    fast: Fast = "auto",
    quantize: str | None = None,
    in_place: bool = False,
    device_map: DeviceMap | None = None,
    draft_device: str | None = None,
    draft_quantize: str | None = None,
    compile: bool = False,
    prefill_chunk: int = PREFILL_CHUNK,
    prefix_memory: int = PREFIX_MEMORY,
) -> Outrider:
    """Load a target and a drafter.

    Args:
        target: a hub id, a folder, a `.gguf` file, "demo", or a `PreTrainedModel`, which stays as it is.
        drafter: "suffix[:OPTIONS]", "lookup[:N]", "reference", "recycle[:K]", "lookahead[:OPTIONS]", "model:SPEC",
            "translated[:auto|tli|slem]:SPEC", "early_exit:E", "mtp[:FOLDER]", "eagle3:FOLDER", "eagle:FOLDER",
            "medusa:FOLDER", "dflash:FOLDER", "cascade:A,B", "none", or "module:Class".
        verifier: "match" (lossless, and the same seed gives the same tokens with any drafter); "token", "block"
            (chains) or "traversal" (lossless in law); or a relaxed rule, whose output has another law and says by how
            much: "ensemble[:w]", "typical[:epsilon,delta]" or "lenience:l".
        policy: how long to draft. "goodput" (as long as tokens per second gain by it, and not where they do not, by
            measured costs and acceptance), "fixed:K" or "fixed:K,NODES" (trees), "heuristic" (start at 5, two more
            after full acceptance, otherwise one less), or, for drafters with probabilities, "confidence[:t]" (until its
            own probability of a token falls under t, 0.4 by default) and "entropy" (until its entropy says that the
            target is likely to refuse).
        dtype: of the weights; by default bfloat16 where the hardware computes in it, float32 otherwise.
        device: by default the first GPU, or else the CPU.
        tokenizer: for a model that is passed; text prompts and stop strings need one.
        offline: never ask a hub.
        trust_remote_code: run code from the model's repository. Read it first.
        fast: compute with the lean decoder (Llama's family) or fast linears (any other model). "auto" does where the
            machine can, True insists, False keeps Transformers' modules.
        quantize: "int8" rounds the weights to int8 with a scale per output, and the inputs of every linear row by row.
            Outputs are exactly those of the quantised model.
        in_place: the weights of a model that is passed may move into the fast layout, so that there is one copy; the
            model is of no use afterwards.
        device_map: Accelerate's, for a model that one device cannot hold: weights on the CPU or on disk are read once
            per pass, so speculation gains the most there.
        draft_device: where the drafter's model goes, if not where the target is, e.g. "cuda:1".
        draft_quantize: "int8" rounds the drafter's model alone, which makes drafts cheaper and never changes a text.
        compile: `torch.compile` the model at fixed shapes, with CUDA graphs on a GPU. The first passes take long.
        prefill_chunk: prompt tokens per pass, which bounds the memory that a long prompt takes.
        prefix_memory: bytes of keys and values of finished requests that are kept, so that a prompt which starts like
            one of them (a chat's next turn) starts from there; 0 keeps none.

    Raises:
        UsageError: what cannot work, before any work, in one sentence with the remedy.
    """
    if prefill_chunk < 1:
        raise BadOption(f"prefill_chunk is {prefill_chunk}: it has to be 1 or more tokens.")
    if prefix_memory < 0:
        raise BadOption(f"prefix_memory is {prefix_memory}: it has to be 0 (keep nothing) or more bytes.")
    loader = Loader(as_dtype(dtype), device, offline, trust_remote_code, fast, quantize, device_map, compile)
    if isinstance(target, str | Path):
        if tokenizer is not None:
            raise BadOption("A tokenizer goes with a model that is passed: a named model brings its own.")
        if in_place:
            raise BadOption("in_place is for a model that is passed: a named model has no other holder, leave it out.")
        loaded = loader.load(str(target))
    elif dtype is not None or device is not None or device_map is not None or trust_remote_code:
        raise BadOption(
            "dtype, device, device_map and trust_remote_code are for named models: move or cast the model itself."
        )
    else:
        loaded = loader.wrap(target, tokenizer, in_place=in_place)
    draft_models = DraftModels(loader, draft_device, draft_quantize)
    llm = Outrider(loaded, draft_models, drafter, verifier, policy, prefill_chunk, Prefixes(prefix_memory))
    if (draft_device or draft_quantize) and not draft_models.asked:
        raise BadOption(f"The drafter {drafter!r} runs no model of its own: leave draft_device and draft_quantize out.")
    return llm
