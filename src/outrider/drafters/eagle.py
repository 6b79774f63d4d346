"""EAGLE and EAGLE-2 (2401.15077, 2406.16858): a trained layer over the target's last states; see `heads/eagle.py`."""

from __future__ import annotations

from .. import features
from ..heads.eagle import EagleHead, EagleShape
from .base import Setting
from .recurrent import Recurrent
from .trained import Opened, borrowed, open_folder, ready


class Eagle(Recurrent):
    """Drafts with an EAGLE head."""

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Eagle:
        """`eagle:FOLDER`, as `outrider train eagle` wrote it, or in a published layout.

        Raises:
            BadOption, ModelNotFound, UnsupportedModel: see `trained.open_folder`.
        """
        return cls.of(open_folder("eagle", argument, setting), setting, f"eagle:{argument}")

    @classmethod
    def of(cls, opened: Opened, setting: Setting, spec: str) -> Eagle:
        """What a folder holds, ready to draft; `spec` names it in reports.

        Raises:
            ModelNotFound: its weights do not fit its config.
        """
        shape = opened.shape(EagleShape)
        head = EagleHead(shape, features.output(setting.target, opened.checkpoint.ids))
        opened.fill(head)
        taps = opened.checkpoint.manifest.taps
        head = ready(head, setting.target)
        parts = borrowed(setting.target, head=head)
        drafter = cls(head, parts, taps, opened.ids, spec)
        drafter.note = opened.note
        return drafter
