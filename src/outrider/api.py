"""The library's face: load a model with a drafter, generate, stream. Everything here only connects the rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch

from . import drafters, policy, verify
from .engine import Engine
from .errors import BadOption
from .loading import DEMO, Loaded, Loader, as_dtype, wrap
from .noise import fresh_seed
from .policy import Policy
from .row import Request, Row
from .sampling import Sampling
from .stats import Stats
from .target import TransformersTarget
from .text import Prompt, as_batch, encode
from .types import FinishReason, Round
from .verify import Verifier


@dataclass(frozen=True, slots=True)
class Output:
    """One finished request.

    Attributes:
        text: what was written, without stop strings and special tokens.
        token_ids: what was written, EOS included.
        finish_reason: "stop" (EOS or a stop string) or "length" (budget or context).
        rounds: every round, in order.
        seed: the same seed gives the same tokens again.
        prompt_tokens: length of the prompt.
        exactness: "bits" if speculation cannot change a logit, "ties" if it may by rounding, so that a near tie can
            flip.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    rounds: list[Round]
    seed: int
    prompt_tokens: int
    exactness: str

    @property
    def stats(self) -> Stats:
        """The figures of this output's rounds."""
        return Stats.of(self.rounds)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the text (possibly nothing yet), and the round itself."""

    text: str
    round: Round


class Outrider:
    """A target with a drafter, ready to generate. Made by `load`.

    Attributes:
        target: the model in the loop.
        tokenizer: Transformers' tokenizer, or None.
        drafter, verifier: the parts in force.
        folder: where the target's files lie, if in a folder.
        exactness: see `Output`.
    """

    def __init__(self, loaded: Loaded, drafter: str, verifier: str, policy_spec: str, loader: Loader) -> None:
        self._loader = loader
        self._make_policy: Callable[[], Policy] = policy.make_policy(policy_spec)
        self.verifier: Verifier = verify.make_verifier(verifier)
        self.target: TransformersTarget = loaded.target
        self.tokenizer: Any = loaded.tokenizer
        self.folder: Path | None = loaded.folder
        self.exactness = self.target.exactness
        self.drafter = drafters.make_drafter(
            drafter, drafters.Setting(self.target, self.tokenizer, self._load_draft_model)
        )
        self._spec = {
            "target": loaded.name,
            "drafter": self.drafter.spec,
            "verifier": verifier,
            "policy": policy_spec,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "device": str(self.target.device),
            "exactness": self.exactness,
        }

    @property
    def configuration(self) -> dict[str, str]:
        """What is in force, for reports."""
        return dict(self._spec)

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling = ...,
        max_new_tokens: int = ...,
        stop: str | Sequence[str] | None = ...,
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        sampling: Sampling = ...,
        max_new_tokens: int = ...,
        stop: str | Sequence[str] | None = ...,
    ) -> list[Output]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
    ) -> Output | list[Output]:
        """Write an answer, or one per prompt of a batch.

        Args:
            prompt: text, a list of chat messages, a list of ids; or a list of those, served together.
            sampling: greedy if not given. Its seed serves every prompt of a batch, so each equals its run alone.
            max_new_tokens: exactly how many tokens may be written.
            stop: a string or several that end the output.

        Raises:
            BadPrompt, BadOption: before any work, with the remedy.
        """
        prompts, batched = as_batch(prompt)
        requests = self._requests(prompts, sampling or Sampling(), max_new_tokens, stop)
        rows: dict[int, Row] = {}
        rounds: dict[int, list[Round]] = {index: [] for index in range(len(requests))}
        for row, round_ in self._engine().run(requests):
            rows[row.index] = row
            rounds[row.index].append(round_)
        outputs = [self._output(rows[index], rounds[index]) for index in range(len(requests))]
        return outputs if batched else outputs[0]

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
    ) -> Iterator[Piece]:
        """Write one answer and yield it round by round. Leaving the iterator early ends the request."""
        prompts, batched = as_batch(prompt)
        if batched:
            raise BadOption("stream takes one prompt: call generate for a batch.")
        requests = self._requests(prompts, sampling or Sampling(), max_new_tokens, stop)
        return (Piece(row.told(), round_) for row, round_ in self._engine().run(requests))

    def _engine(self) -> Engine:
        return Engine(self.target, self.drafter, self.verifier, self._make_policy, self.tokenizer)

    def _requests(
        self, prompts: Sequence[Prompt], sampling: Sampling, max_new_tokens: int, stop: str | Sequence[str] | None
    ) -> list[Request]:
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        requests = []
        for prompt in prompts:
            if self.tokenizer is None and not all(isinstance(part, int) for part in prompt):
                raise BadOption("Text prompts need a tokenizer: pass tokenizer= to load, or give token ids.")
            ids = tuple(encode(self.tokenizer, prompt))
            seed = fresh_seed() if sampling.seed is None else sampling.seed
            request = Request(ids, sampling, seed, max_new_tokens, stops)
            request.check(self.target.context, self.target.vocabulary)
            requests.append(request)
        return requests

    def _output(self, row: Row, rounds: list[Round]) -> Output:
        assert row.finish is not None
        request = row.request
        return Output(row.text, row.output, row.finish, rounds, request.seed, len(request.prompt), self.exactness)

    def _load_draft_model(self, name: str) -> tuple[TransformersTarget, Any]:
        loaded = self._loader.load(name)
        return loaded.target, loaded.tokenizer


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
) -> Outrider:
    """Load a target and a drafter.

    Args:
        target: a hub id, a folder, a `.gguf` file, "demo", or a `PreTrainedModel`, which stays as it is.
        drafter: "none", "lookup[:N]", "model:SPEC", or "package.module:Class".
        verifier: "match" (lossless, and the same seed gives the same tokens with any drafter) or "token" (lossless
            in law).
        policy: "heuristic" or "fixed:K".
        dtype: of the weights; by default bfloat16 where the hardware computes in it, float32 otherwise.
        device: by default the first GPU, or else the CPU.
        tokenizer: for a model that is passed; text prompts and stop strings need one.
        offline: never ask a hub.
        trust_remote_code: run code from the model's repository. Read it first.

    Raises:
        UsageError: what cannot work, before any work, in one sentence with the remedy.
    """
    loader = Loader(as_dtype(dtype), device, offline, trust_remote_code)
    if isinstance(target, str | Path):
        if tokenizer is not None:
            raise BadOption("A tokenizer goes with a model that is passed: a named model brings its own.")
        return Outrider(loader.load(str(target)), drafter, verifier, policy, loader)
    if dtype is not None or device is not None or trust_remote_code:
        raise BadOption("dtype, device and trust_remote_code are for named models: move or cast the model itself.")
    return Outrider(wrap(target, tokenizer), drafter, verifier, policy, loader)
