"""A multi-token-prediction layer that `outrider train mtp` made: one depth, recursed; see `heads/mtp.py`."""

from __future__ import annotations

from .. import features
from ..heads.mtp import MtpHead, MtpShape
from .base import Setting
from .recurrent import Recurrent
from .trained import borrowed, open_folder, ready


class TrainedMtp(Recurrent):
    """Drafts with a trained MTP head."""

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> TrainedMtp:
        """`mtp:FOLDER`, as `outrider train mtp` wrote it.

        Raises:
            BadOption, ModelNotFound, UnsupportedModel: see `trained.open_folder`.
        """
        opened = open_folder("mtp", argument, setting)
        head = MtpHead(opened.shape(MtpShape), features.output(setting.target, opened.checkpoint.ids))
        opened.fill(head)
        taps = opened.checkpoint.manifest.taps
        return cls(ready(head, setting.target), borrowed(setting.target), taps, opened.ids, f"mtp:{argument}")
