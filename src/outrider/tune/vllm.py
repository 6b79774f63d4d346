"""What was found, as vLLM's `--speculative-config` says it, where vLLM has the method. Knows no vLLM code.

Keys as of vLLM 0.32 (`vllm/config/speculative.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import verify
from ..drafters.lookup import Lookup
from ..drafters.options import read_options
from ..drafters.suffix import FACTOR
from ..loading import DEMO, demo_folder
from ..measure.results import PLAIN
from .search import Prediction, Setting

_TRAINED = ("eagle", "eagle3", "medusa", "dflash", "mtp")  # our names are vLLM's


@dataclass(frozen=True, slots=True)
class Deployment:
    """The configuration, or why there is none.

    Attributes:
        config: for `--speculative-config`; None where vLLM has no such method or none is needed.
        notes: what else to know, a sentence each.
    """

    config: dict[str, Any] | None
    notes: tuple[str, ...]


def deployment(setting: Setting, verifier: str, predictions: Sequence[Prediction]) -> Deployment:
    """vLLM's configuration for what was chosen.

    Args:
        setting: it.
        verifier: spec of the rule.
        predictions: of all settings, for the lengths: vLLM drafts chains of a fixed length.
    """
    if setting.drafter == PLAIN:
        return Deployment(None, ("Plain decoding takes no --speculative-config.",))
    method, notes = method_of(setting.drafter)
    if method is None:
        return Deployment(None, notes)
    lengths = _lengths(setting.drafter, predictions)
    if not lengths.get(setting.batch):
        return Deployment(None, ("vLLM drafts chains, and no chain of this drafter pays here.",))
    config = {**method, "num_speculative_tokens": max(lengths.values())}
    if len(set(lengths.values())) > 1:
        starts = [1, *(size + 1 for size in lengths)]
        config["num_speculative_tokens_per_batch_size"] = [
            [start, size, k] for start, (size, k) in zip(starts, lengths.items(), strict=False)
        ]
    if verifier == "block":
        config["rejection_sample_method"] = "block"
    elif not verify.make_verifier(verifier).lossless:
        notes = (*notes, f"vLLM has no rule like '{verifier}': it keeps the target's law, and accepts less.")
    if setting.shape is None or setting.shape.is_tree:
        notes = (*notes, "vLLM drafts chains of a fixed length: this is the best one predicted for this drafter.")
    return Deployment(config, notes)


def _lengths(drafter: str, predictions: Sequence[Prediction]) -> dict[int, int]:
    """Batch -> the best length of a chain, 0 where plain decoding is faster; batches rising."""
    found: dict[int, Prediction] = {}
    for one in predictions:
        chain = one.setting.shape is not None and not one.setting.shape.is_tree and one.setting.drafter == drafter
        before = found.get(one.setting.batch)
        if (chain or one.setting.drafter == PLAIN) and (before is None or one.per_user > before.per_user):
            found[one.setting.batch] = one
    return {batch: one.setting.shape.depth if one.setting.shape else 0 for batch, one in sorted(found.items())}


def method_of(drafter: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The method of a drafter's spec with its own keys, and notes; or nothing and the reason."""
    name, _, argument = drafter.partition(":")
    if name == "lookup":
        return {
            "method": "ngram",
            "prompt_lookup_max": int(argument or Lookup().spec.partition(":")[2]),
            "prompt_lookup_min": 1,
        }, ()
    if name == "suffix":
        return _suffix(argument)
    if name == "model":
        return _draft_model(argument, {})
    if name == "translated":
        mode, colon, rest = argument.partition(":")
        spec = rest if colon and mode in ("auto", "tli", "slem") else argument
        return _draft_model(spec, {"use_heterogeneous_vocab": True})
    if name in _TRAINED:
        return {"method": name, **({"model": argument} if argument else {})}, ()
    return None, (f"vLLM has no method like '{name}': it runs here alone.",)


def _suffix(argument: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    keys = {"factor": float, "longest": int, "doubt": float, "global": int, "corpus": str}
    given = read_options("suffix", argument, keys, path="corpus")
    config: dict[str, Any] = {"method": "suffix", "suffix_decoding_max_spec_factor": given.get("factor", FACTOR)}
    if given.get("global") == 0:
        config["suffix_decoding_max_cached_requests"] = 0
    note = "vLLM's suffix decoding takes the package arctic-inference; its 'ngram' comes near without it."
    return config, (note, "vLLM scores matches by counts alone, without the doubt of short ones.")


def _draft_model(spec: str, more: dict[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if spec.endswith(".gguf"):
        return None, ("vLLM takes a draft model as a folder or a hub id: convert the GGUF file.",)
    return {"method": "draft_model", "model": str(demo_folder()) if spec == DEMO else spec, **more}, ()
