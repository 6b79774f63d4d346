"""Where training takes the target's states from: computed as it goes, or kept on the disk (`train.stored`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from .. import features
from ..errors import BadOption
from ..target import Target
from ..train.answers import Answer
from ..train.corpus import Features, OnlineFeatures
from ..train.stored import About, Store, StoredFeatures, check_room, fill, key_of
from .showing import progress_bar

KINDS = ("online", "stored")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How states are kept.

    Attributes:
        dtype: "bfloat16" or "float32".
        limit: GiB that they may take, of each folder of answers.
        show: bars.
    """

    dtype: str
    limit: float
    show: bool


def about(target: Target, layers: Sequence[int], dtype: str) -> About:
    """What a store of these layers' states has to hold; the last layer's always.

    Raises:
        BadOption: there is no such type or layer.
    """
    depth = features.depth_of(target)
    if dtype not in ("bfloat16", "float32"):
        raise BadOption(f"features_dtype is {dtype!r}: choose bfloat16 or float32.")
    if not all(0 <= layer <= depth for layer in layers):
        raise BadOption(f"The target has the layers 0 to {depth}, and {max(layers)} is wanted: choose among them.")
    return About(
        target=features.fingerprint(target),
        computed=str(target.dtype).removeprefix("torch."),
        dtype=cast(Literal["bfloat16", "float32"], dtype),
        layers=tuple(sorted({*layers, depth})),
    )


def stored(
    target: Target, taps: tuple[int, ...], data: Sequence[tuple[Path, list[Answer]]], longest: int, keeping: Keeping
) -> Features:
    """States from the folders of answers; what is not there yet is computed now, by all processes together.

    Args:
        target: whose.
        taps: which layers.
        data: folders with those of their answers that are wanted, whole.
        longest: tokens that an answer is cut to.
        keeping: how.

    Raises:
        BadOption: they take more room than is allowed, or than there is.
    """
    from accelerate import PartialState

    processes = PartialState(cpu=target.device.type == "cpu")
    wanted, stores = about(target, taps, keeping.dtype), []
    for path, answers in data:
        with processes.main_process_first():  # it alone removes what does not serve
            store = Store(path, wanted)
            _scan(store, keeping.show and processes.is_main_process)
        missing = list({key_of(answer.ids): answer for answer in store.missing(answers)}.values())
        size = store.about.token_bytes(features.width_of(target))
        every = {key_of(answer.ids): len(answer.ids) for answer in answers}
        lacking = sum(len(answer.ids) for answer in missing)
        check_room(path, sum(every.values()) * size, keeping.limit, (sum(every.values()) - lacking) * size)
        processes.wait_for_everyone()
        own = missing[processes.process_index :: processes.num_processes]
        states = OnlineFeatures(target, store.about.layers)
        with progress_bar(f"states of {path.name}", len(own), keeping.show and processes.is_main_process) as advance:
            fill(store, own, states, advance)
        processes.wait_for_everyone()
        if missing:
            _scan(store, keeping.show and processes.is_main_process)
        stores.append(store)
    whole = [answer for _, answers in data for answer in answers]
    return StoredFeatures(target, taps, features.depth_of(target), stores, whole, longest)


def _scan(store: Store, show: bool) -> None:
    with progress_bar(f"checking {store.path}", len(store.shards()), show) as advance:
        store.scan(advance)
