"""The library's face: load a model with a drafter, generate, stream. Everything here only connects the rooms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch

from . import combinations, drafters, policy, verify
from .draft_models import DraftModels
from .engine import PREFILL_CHUNK, Engine
from .errors import BadOption, BadPrompt
from .listening import Ear, Listening, ListeningStream, Recording, Sound, Wish
from .loading import DEMO, DeviceMap, Fast, Loaded, Loader, as_dtype
from .noise import fresh_seed
from .outputs import Batch, Output, Piece, Stream, Transcript
from .prefix import PREFIX_MEMORY, Prefixes
from .row import Request
from .sampling import Sampling
from .sources import addressed, words
from .target import Encoder, Target
from .text import Prediction, Prompt, as_batch, as_predictions, encode, encode_prediction
from .verify import Verifier

MAX_NEW_TOKENS = 256  # where nothing is said
__all__ = ["MAX_NEW_TOKENS", "Batch", "Output", "Outrider", "Piece", "Stream", "Transcript", "load"]


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
        spec, has_law, reads = self.drafter.spec or drafter, self.drafter.has_law, self.drafter.reads
        self._knows = policy.Setting(spec, has_law, branches, reads)
        self._make_policy = policy.make_policy(policy_spec, self._knows)

    @property
    def encodes(self) -> bool:
        """Whether the target is an encoder-decoder model: it reads the prompt and then writes an answer to it."""
        return isinstance(self.target, Encoder)

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

    @overload
    def generate(
        self,
        prompt: str | None = ...,
        *,
        audio: Sound,
        language: str | None = ...,
        task: str | None = ...,
        timestamps: bool | None = ...,
        sampling: Sampling | None = ...,
        max_new_tokens: int | None = ...,
        prediction: Prediction | None = ...,
    ) -> Transcript: ...
    @overload
    def generate(
        self,
        prompt: str | None = ...,
        *,
        audio: list[Sound],
        language: str | None = ...,
        task: str | None = ...,
        timestamps: bool | None = ...,
        sampling: Sampling | None = ...,
        max_new_tokens: int | None = ...,
        prediction: Sequence[Prediction] | None = ...,
    ) -> list[Transcript]: ...
    @overload  # a string is a sequence of strings to mypy; `as_batch` tells them apart
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = ...,
        max_new_tokens: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        prediction: Prediction | None = ...,
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        sampling: Sampling | None = ...,
        max_new_tokens: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        prediction: Sequence[Prediction] | None = ...,
    ) -> list[Output]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        prediction: Prediction | Sequence[Prediction] | None = None,
        audio: Sound | list[Sound] | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool | None = None,
    ) -> Output | Sequence[Output]:
        """Write an answer, or one per prompt of a batch; for a target that reads audio, what is said in a recording.

        Args:
            prompt: text, a list of chat messages, a list of ids; or a list of those, served together. With audio, text
                that stands before it, such as names that will occur.
            sampling: greedy if not given. Its seed serves every prompt of a batch, so each equals its run alone.
            max_new_tokens: exactly how many tokens may be written, 256 if not given; with audio in each chunk, as many
                as the context holds if not given.
            stop: a string or several that end the output.
            prediction: the text that you expect, or its ids, for the drafter "reference"; of a batch a list of them,
                one per prompt. It influences speed only.
            audio: a file, its content, or samples at the model's rate; or a list of those, heard together.
            language: of the recording: a code, a name or a token; detected if not given.
            task: "transcribe" (if not given) or "translate", into English.
            timestamps: write time stamps; they are written anyway where a recording is longer than a chunk.

        Raises:
            BadPrompt, BadOption: before any work, with the remedy.
        """
        if audio is not None:
            listening = self._listening(
                prompt, audio, sampling, max_new_tokens, stop, prediction, language, task, timestamps
            )
            for _ in listening:
                pass
            return listening.outputs if isinstance(audio, list) else listening.outputs[0]
        self._without_audio(language, task, timestamps)
        if prompt is None:
            raise BadPrompt("There is no prompt: give one, or audio= for a target that reads audio.")
        prompts, batched = as_batch(prompt)
        predictions = as_predictions(prediction, len(prompts), batched)
        requests = self._requests(prompts, sampling or Sampling(), _length(max_new_tokens), stop, predictions)
        batch = self._started(requests)
        for _ in batch:
            pass
        return batch.outputs if batched else batch.outputs[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
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
        prompt: Prompt | None = None,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        prediction: Prediction | None = None,
        audio: Sound | list[Sound] | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool | None = None,
    ) -> Stream | ListeningStream:
        """Write one answer and yield it round by round. Leaving the iterator early ends the request. See `generate`.

        With time stamps, text comes by whole segments: what stands behind the last of a chunk is heard again.
        """
        if audio is not None:
            if isinstance(audio, list):
                raise BadOption("stream takes one recording: call generate for several.")
            return ListeningStream(
                self._listening(prompt, audio, sampling, max_new_tokens, stop, prediction, language, task, timestamps)
            )
        self._without_audio(language, task, timestamps)
        if prompt is None:
            raise BadPrompt("There is no prompt: give one, or audio= for a target that reads audio.")
        prompts, batched = as_batch(prompt)
        if batched:
            raise BadOption("stream takes one prompt: call generate for a batch.")
        predictions = as_predictions(prediction, 1, False)
        requests = self._requests(prompts, sampling or Sampling(), _length(max_new_tokens), stop, predictions)
        return Stream(self.engine().run(requests), requests[0], self.exactness, self.verifier)

    @property
    def ear(self) -> Ear:
        """What hears recordings.

        Raises:
            BadOption: the target reads none, or its feature extractor is missing.
        """
        return Ear(self.target, self._loaded.extractor, self.tokenizer)

    def _listening(
        self,
        prompt: object,
        audio: Sound | list[Sound],
        sampling: Sampling | None,
        max_new_tokens: int | None,
        stop: object,
        prediction: Prediction | Sequence[Prediction] | None,
        language: str | None,
        task: str | None,
        timestamps: bool | None,
    ) -> Listening:
        """Recordings, ready to be heard; see `generate`."""
        if stop:
            raise BadOption("A recording is heard to its end: leave stop out.")
        if prompt is not None and not isinstance(prompt, str):
            raise BadPrompt("With audio, the prompt is a text that stands before it: give a string, or leave it out.")
        ear, sampling = self.ear, sampling or Sampling()
        sounds = audio if isinstance(audio, list) else [audio]
        context = ear.context(prompt) if prompt else ()
        recordings = []
        for sound, expected in zip(
            sounds, as_predictions(prediction, len(sounds), isinstance(audio, list)), strict=True
        ):
            ids = ear.prediction(expected) if isinstance(expected, str) else tuple(expected or ())
            self.drafter.check_prediction(ids)
            seed = fresh_seed() if sampling.seed is None else sampling.seed
            wish = Wish(sampling, seed, language, task, timestamps, context, ids, max_new_tokens)
            recordings.append(Recording(ear, ear.samples(sound), wish))
        return Listening(self.engine(), recordings, self.exactness, self.verifier)

    def _without_audio(self, *options: object) -> None:
        if any(option is not None for option in options):
            raise BadOption("language, task and timestamps are about a recording: pass audio=, or leave them out.")

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
            expected = () if prediction is None else encode_prediction(self.tokenizer, prediction, encoded=self.encodes)
            request = Request(ids, sampling, seed, max_new_tokens, stops, expected)
            if self.encodes:
                request = addressed(self.target, request, words(self.tokenizer, prompt))
            request.check(self.target.context, self.target.vocabulary)
            self.drafter.check_prediction(expected)
            requests.append(request)
        return requests


def _length(max_new_tokens: int | None) -> int:
    """How many tokens an answer to a text may have."""
    return MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens


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
            "translated[:auto|tli|slem]:SPEC", "early_exit:E|FOLDER", "mtp[:FOLDER]", "eagle3:FOLDER", "eagle:FOLDER",
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
        tokenizer: for a model that is passed; text prompts and stop strings need one. For one that reads audio, its
            processor.
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
