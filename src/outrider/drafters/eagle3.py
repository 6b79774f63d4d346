"""EAGLE-3 (Li et al., 2503.01840): a trained layer over fused states of three target layers; see `heads/eagle3.py`."""

from __future__ import annotations

from ..heads.eagle3 import Eagle3Head, Eagle3Shape
from ..target import Target
from .recurrent import Recurrent
from .trained import Opened


class Eagle3(Recurrent):
    """Drafts with an EAGLE-3 head."""

    method = "eagle3"

    @classmethod
    def empty(cls, opened: Opened, target: Target) -> Eagle3Head:
        """See `Trained`."""
        return Eagle3Head(opened.shape(Eagle3Shape))
