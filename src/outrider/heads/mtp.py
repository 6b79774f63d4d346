"""Multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2): modules that go on from a target's last states.

Knows no files, no caches and no loop; the target's embedding and head are the caller's where a checkpoint has no own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class MtpDepth(nn.Module):
    """One depth: the state at a position and the embedding of a later token give the state that predicts the next.

    Args:
        width: D of the target.
        block: a decoder layer of the target's kind.
        norms: of the embedding, of the incoming state, of the outgoing one.
        rotary: (states, positions) -> the position embeddings that the decoder layer takes.
        embedding: [V, D] the depth's own table; None for the target's.
        head: D to V, the depth's own; None for the target's.
    """

    def __init__(
        self,
        width: int,
        block: nn.Module,
        norms: tuple[nn.Module, nn.Module, nn.Module],
        rotary: Callable[[Tensor, Tensor], Any],
        embedding: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.norm = norms
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.block, self.rotary = block, rotary
        self.embedding, self.head = embedding, head

    def forward(self, embedded: Tensor, hidden: Tensor, positions: Tensor, **how: Any) -> Tensor:
        """The normed states, ready for the head and for the next depth.

        Args:
            embedded, hidden: [rows, N, D]; `hidden` is normed as a target's last states are, or came from here.
            positions: [rows, N] int64.
            how: what else the decoder layer takes, for example the pass that holds its keys.
        """
        states = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        turns = self.rotary(states, positions)
        mixed = self.block(states, attention_mask=None, position_ids=positions, position_embeddings=turns, **how)
        normed: Tensor = self.norm(mixed)
        return normed
