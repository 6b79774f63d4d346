"""A multi-token-prediction layer that `outrider train mtp` made: one depth, recursed; see `heads/mtp.py`."""

from __future__ import annotations

from .. import features
from ..heads.mtp import MtpHead, MtpShape
from ..target import Target
from .recurrent import Recurrent
from .trained import Opened


class TrainedMtp(Recurrent):
    """Drafts with a trained MTP head."""

    method = "mtp"

    @classmethod
    def empty(cls, opened: Opened, target: Target) -> MtpHead:
        """See `Trained`."""
        return MtpHead(opened.shape(MtpShape), features.output(target, opened.checkpoint.ids))
