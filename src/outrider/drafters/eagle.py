"""EAGLE and EAGLE-2 (2401.15077, 2406.16858): a trained layer over the target's last states; see `heads/eagle.py`."""

from __future__ import annotations

from .. import features
from ..heads.eagle import EagleHead, EagleShape
from ..target import Target
from .recurrent import Recurrent
from .trained import Opened


class Eagle(Recurrent):
    """Drafts with an EAGLE head."""

    method = "eagle"

    @classmethod
    def empty(cls, opened: Opened, target: Target) -> EagleHead:
        """See `Trained`."""
        return EagleHead(opened.shape(EagleShape), features.output(target, opened.checkpoint.ids))
