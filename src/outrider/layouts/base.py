"""What a layout is: a config that it recognises, a reading of it, and a writing. Knows no single one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..checkpoints import Checkpoint, TargetId
from .folder import Found


@dataclass(frozen=True, slots=True)
class View:
    """What reading a published folder takes of the target that it is to draft for.

    Attributes:
        id: its name and sizes.
        template: hash of its chat template, or None.
        embeds: whether a [V, D] table is what the target embeds with.
        answers: whether [n, D] rows are its output layer's for ids [n].
        scaled: it multiplies its embeddings, so that they are not the rows of its table (Gemma).
    """

    id: TargetId
    template: str | None
    embeds: Callable[[Tensor], bool]
    answers: Callable[[Tensor, Tensor], bool]
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """A published drafter in our terms.

    Attributes:
        method: ours.
        taps: in `hidden_states` numbering.
        shape: sizes of its modules.
        tensors: by our names.
        ids: [n] int64 rising, the target's ids of the draft vocabulary.
        notes: what was concluded and from what, a sentence each.
        verifier: the target's name in the config, or None.
    """

    method: str
    taps: tuple[int, ...]
    shape: dict[str, Any]
    tensors: dict[str, Tensor]
    ids: Tensor
    notes: tuple[str, ...] = ()
    verifier: str | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What writing takes of the target as a serving engine knows it.

    Attributes:
        name: hub id or folder.
        architectures: of its config.
        positions: longest context.
        rows: ids [n] -> [n, D], its output layer's, in float32; may load the target.
        table: the embeddings as the target uses them, [V, D], likewise.
        tokens: drafted per round, where the layout says it.
        engine: whose names are to be written, where engines differ: "vllm" or "sglang".
        scaled: they are not the rows of its table.
    """

    name: str
    architectures: tuple[str, ...]
    positions: int
    rows: Callable[[Tensor], Tensor]
    table: Callable[[], Tensor]
    tokens: int = 3
    engine: str = "vllm"
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    """A drafter in a published layout.

    Attributes:
        config: config.json.
        tensors: the weights.
        notes: what the layout, or an engine that reads it, cannot say, a sentence each.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = field(default=())


class Layout(ABC):
    """One published layout.

    Attributes:
        name: on the command line.
        methods: of ours that it can hold.
        unsaid: keys of our shapes that it has no place for.
        says_ids: it has a place for the draft vocabulary.
        engines: the engines whose names differ in it; empty where one folder serves all.
        says_tokens: it says how many tokens are drafted per round.
    """

    name: str
    methods: tuple[str, ...]
    unsaid: tuple[str, ...] = ()
    says_ids: bool = True
    engines: tuple[str, ...] = ()
    says_tokens: bool = False

    @abstractmethod
    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether a config is of this layout."""

    @abstractmethod
    def read(self, found: Found, view: View) -> Reading:
        """A folder in our terms.

        Raises:
            UnsupportedModel: with the key or tensor, and what was expected.
        """

    @abstractmethod
    def write(self, checkpoint: Checkpoint, serving: Serving) -> Writing:
        """A drafter of ours in this layout.

        Raises:
            UnsupportedModel: it has a part that the layout cannot hold.
        """
