"""Where Outrider keeps what takes long to make. Knows nothing of what that is."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """OUTRIDER_CACHE, or else the user's cache folder."""
    named = os.environ.get("OUTRIDER_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outrider"
