"""A multi-token-prediction layer that `outrider train mtp` made: one depth, recursed; see `heads/mtp.py`."""

from __future__ import annotations

from .. import features
from ..heads.mtp import MtpHead, MtpShape
from .base import Setting
from .recurrent import Recurrent
from .trained import Opened, borrowed, open_folder, ready


class TrainedMtp(Recurrent):
    """Drafts with a trained MTP head."""

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> TrainedMtp:
        """`mtp:FOLDER`, as `outrider train mtp` wrote it, or in a published layout.

        Raises:
            BadOption, ModelNotFound, UnsupportedModel: see `trained.open_folder`.
        """
        return cls.of(open_folder("mtp", argument, setting), setting, f"mtp:{argument}")

    @classmethod
    def of(cls, opened: Opened, setting: Setting, spec: str) -> TrainedMtp:
        """What a folder holds, ready to draft; `spec` names it in reports.

        Raises:
            ModelNotFound: its weights do not fit its config.
        """
        head = MtpHead(opened.shape(MtpShape), features.output(setting.target, opened.checkpoint.ids))
        opened.fill(head)
        taps = opened.checkpoint.manifest.taps
        drafter = cls(ready(head, setting.target), borrowed(setting.target), taps, opened.ids, spec)
        drafter.note = opened.note
        return drafter
