"""EAGLE-3 (Li et al., 2503.01840): a trained layer over fused states of three target layers; see `heads/eagle3.py`."""

from __future__ import annotations

from ..heads.eagle3 import Eagle3Head, Eagle3Shape
from .base import Setting
from .recurrent import Recurrent
from .trained import Opened, borrowed, open_folder, ready


class Eagle3(Recurrent):
    """Drafts with an EAGLE-3 head."""

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Eagle3:
        """`eagle3:FOLDER`, as `outrider train eagle3` wrote it, or in a published layout.

        Raises:
            BadOption, ModelNotFound, UnsupportedModel: see `trained.open_folder`.
        """
        return cls.of(open_folder("eagle3", argument, setting), setting, f"eagle3:{argument}")

    @classmethod
    def of(cls, opened: Opened, setting: Setting, spec: str) -> Eagle3:
        """What a folder holds, ready to draft; `spec` names it in reports.

        Raises:
            ModelNotFound: its weights do not fit its config.
        """
        head = Eagle3Head(opened.shape(Eagle3Shape))
        opened.fill(head)
        taps = opened.checkpoint.manifest.taps
        head = ready(head, setting.target)
        parts = borrowed(setting.target, head=head)
        drafter = cls(head, parts, taps, opened.ids, spec)
        drafter.note = opened.note
        return drafter
