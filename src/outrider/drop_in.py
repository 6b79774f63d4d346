"""Outrider inside Transformers' own `generate`: `model.generate(**inputs, custom_generate=generate_with("suffix"))`.

`generate` does what it always does (reads its options, prepares processors and stopping criteria) and then calls this
in the place of its sampling loop. The model stays as it is: the loop works on a copy of its module tree that shares the
weights, made once per model and made anew when the weights have changed since.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from . import drafters, policy, verify
from .api import Batch, Output, Outrider, load
from .errors import BadOption
from .loading import Fast
from .prefix import PREFIX_MEMORY
from .row import Request
from .transformers_options import Reading, check_arguments, check_config, check_inputs, prompts_of
from .types import Round


class GenerateWith:
    """What `generate_with` makes.

    Attributes:
        outputs: of the last call, one per row, with rounds and figures (`outputs[0].stats`).
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._made: WeakKeyDictionary[Any, tuple[object, Outrider]] = WeakKeyDictionary()
        self.outputs: list[Output] = []

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool | None = None,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by `generate`, with what it prepared; arguments and result are those of its own `_sample`.

        Returns:
            [B, L] ids of prompts and outputs, or a `GenerateDecoderOnlyOutput` with them.

        Raises:
            UsageError: before any work, an option that cannot be served, by name.
        """
        if getattr(model.config, "is_encoder_decoder", False):
            raise BadOption("generate_with serves decoder-only models: an encoder-decoder model goes to outrider.load.")
        given = {"synced_gpus": synced_gpus, "streamer": streamer, **_asked_of_generate(self)}
        check_arguments(given)
        check_config(generation_config)
        check_inputs(model_kwargs)
        reading = Reading(generation_config, logits_processor, stopping_criteria, input_ids.device)
        prompts = prompts_of(input_ids, model_kwargs)
        pad = generation_config._pad_token_tensor
        if pad is None and reading.open_ended and len(prompts) > 1:
            raise BadOption("Rows of a batch end at different lengths: set pad_token_id to fill the shorter ones.")
        llm = self._outrider(model)
        requests = _requests(llm, reading, prompts, input_ids)
        batch = Batch(llm.engine().run(requests), requests, llm.exactness, llm.verifier)
        filler = 0 if pad is None else int(pad)
        steps = _Steps(given["streamer"], len(requests), filler)
        for round_ in batch:
            steps.take(round_)
        steps.end()
        self.outputs = batch.outputs
        sequences = _joined(input_ids, [output.token_ids for output in self.outputs], filler)
        if not generation_config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _outrider(self, model: Any) -> Outrider:
        """The loop around a model, as its weights are now."""
        state = _state(model)
        known = self._made.get(model)
        if known is None or known[0] != state:
            known = (state, load(model, **self._options))
            self._made[model] = known
        return known[1]


def generate_with(
    drafter: str = drafters.DEFAULT,
    verifier: str = verify.DEFAULT,
    policy: str = policy.DEFAULT,
    *,
    tokenizer: Any = None,
    fast: Fast = "auto",
    offline: bool = False,
    draft_device: str | None = None,
    draft_quantize: str | None = None,
    prefix_memory: int = PREFIX_MEMORY,
) -> GenerateWith:
    """A decoding loop for Transformers: `model.generate(**inputs, custom_generate=outrider.generate_with("suffix"))`.

    Keep it and pass it again: it remembers each model that it has served. Greedy outputs are `generate`'s own;
    sampled ones have the same law, with noise from torch's global generator, so that `torch.manual_seed` repeats them.

    Args:
        drafter, verifier, policy: see `load`.
        tokenizer: the model's, for drafters that read text (a corpus, another tokenizer's model).
        fast: False keeps Transformers' modules, without a second copy of the weights; see `load`.
        offline, draft_device, draft_quantize, prefix_memory: see `load`.

    Raises:
        BadOption: a spec that there is not.
    """
    drafters.drafter_class(drafter)
    verify.make_verifier(verifier)
    options = {
        "drafter": drafter,
        "verifier": verifier,
        "policy": policy,
        "tokenizer": tokenizer,
        "fast": fast,
        "offline": offline,
        "draft_device": draft_device,
        "draft_quantize": draft_quantize,
        "prefix_memory": prefix_memory,
    }
    return GenerateWith(options)


class _Steps:
    """Feeds a streamer as Transformers does: at each step one token of every row, the filler for rows that have ended.

    Rows that are ahead wait for the others.
    """

    def __init__(self, streamer: Any, rows: int, filler: int) -> None:
        self._streamer, self._filler = streamer, filler
        self._written: list[list[int]] = [[] for _ in range(rows)]
        self._open = set(range(rows))
        self._told = 0

    def take(self, round_: Round) -> None:
        """Pass on what a round makes certain."""
        self._written[round_.request] += round_.tokens
        if round_.finish is not None:
            self._open.discard(round_.request)
        lengths = [len(self._written[row]) for row in self._open] or [max(map(len, self._written))]
        if self._streamer is not None:
            for step in range(self._told, min(lengths)):
                tokens = [row[step] if step < len(row) else self._filler for row in self._written]
                self._streamer.put(torch.tensor(tokens))
        self._told = max(self._told, min(lengths))

    def end(self) -> None:
        """Nothing follows."""
        if self._streamer is not None:
            self._streamer.end()


def _requests(llm: Outrider, reading: Reading, prompts: Sequence[list[int]], input_ids: Tensor) -> list[Request]:
    width = input_ids.shape[1]
    seeds = torch.randint(1 << 62, (len(prompts),)).tolist() if reading.samples else [0] * len(prompts)
    requests = []
    for row, prompt in enumerate(prompts):
        padding = input_ids[row, : width - len(prompt)].tolist()
        new = reading.longest - width
        if len(prompt) + new > llm.target.context:
            raise BadOption(
                f"A prompt of {len(prompt)} tokens and {new} new ones pass the model's context of "
                f"{llm.target.context}: lower max_new_tokens or max_length."
            )
        request = Request(
            prompt=tuple(prompt),
            sampling=reading.sampling(row, padding),
            seed=seeds[row],
            max_new_tokens=new,
            ignore_eos=True,  # the ids that end this call are the configuration's, which `until` knows
            until=reading.ending(padding),
        )
        request.check(llm.target.context, llm.target.vocabulary)
        requests.append(request)
    return requests


def _joined(input_ids: Tensor, outputs: Sequence[Sequence[int]], filler: int) -> Tensor:
    """[B, L] prompts with their outputs, the shorter ones filled up."""
    width = max(map(len, outputs))
    rows = [[*output, *[filler] * (width - len(output))] for output in outputs]
    return torch.cat([input_ids, torch.tensor(rows, device=input_ids.device, dtype=input_ids.dtype)], dim=1)


def _state(model: Any) -> object:
    """Something that differs once weights have been changed, moved, cast or replaced, or modules exchanged, hooked or
    set up otherwise (adapters switched on or off)."""
    tensors = chain(model.parameters(), model.buffers())
    weights = tuple((t.data_ptr(), 0 if t.is_inference() else t._version, t.dtype, t.device) for t in tensors)
    return weights, [(id(module), _settings(module)) for module in model.modules()]


def _settings(module: Any) -> list[object]:
    """What a module holds besides tensors and modules; whether it is training plays no part in generating."""
    plain = (bool, int, float, str, list, tuple)
    found: list[object] = [
        (name, str(value)) for name, value in vars(module).items() if isinstance(value, plain) and name != "training"
    ]
    return [*found, list(module._forward_hooks), list(module._forward_pre_hooks)]


def _asked_of_generate(recipe: object) -> dict[str, Any]:
    """The arguments of the `generate` call that we are inside of, as far as it keeps them to itself.

    Transformers (5.24, `_extract_generation_mode_kwargs`) hands a callable neither the streamer nor the assistant
    model, so they are read where they lie. The call is known by its `custom_generate`. Empty where nobody called
    `generate`.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if "custom_generate" in frame.f_code.co_varnames:
            found = frame.f_locals
            if found.get("custom_generate") is recipe and "streamer" in found:
                names = ("streamer", "assistant_model", "synced_gpus")
                return {name: found[name] for name in names if found.get(name) is not None}
    return {}
