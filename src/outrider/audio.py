"""Recordings from files of any common format, as samples. Decoding and resampling are PyAV's (FFmpeg).

Knows no models.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadOption, BadPrompt

LONGEST = 4 * 3600  # seconds; longer ones are refused before they fill the memory
Samples = np.ndarray[tuple[int], np.dtype[np.float32]]


def read_audio(source: str | Path | bytes, rate: int, longest: float = LONGEST) -> Samples:
    """A recording as one channel of samples between -1 and 1.

    Args:
        source: a file's path, or its content.
        rate: samples per second that are wanted.
        longest: seconds.

    Raises:
        BadOption: the package that reads audio is not installed.
        BadPrompt: no such file, no audio in it, or too long.
    """
    try:
        import av
    except ImportError as error:
        raise BadOption("Reading audio files takes an extra: pip install 'outrider[audio]'.") from error
    name = "The audio" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise BadPrompt(f"There is no file {name}: check the path.")
    opened: Any = io.BytesIO(source) if isinstance(source, bytes) else str(source)
    parts, count = [], 0
    try:
        with av.open(opened, mode="r", metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise BadPrompt(f"{name} has no sound in it: give a recording.")
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for frame in container.decode(audio=0):
                for part in resampler.resample(frame):
                    parts.append(part.to_ndarray().reshape(-1))
                    count += len(parts[-1])
                if count > longest * rate:
                    raise BadPrompt(f"{name} is longer than {longest:g} seconds: cut it into parts.")
            parts += [part.to_ndarray().reshape(-1) for part in resampler.resample(None)]
    except av.FFmpegError as error:
        raise BadPrompt(
            f"{name} cannot be read as audio ({error.strerror}): give WAV, FLAC, MP3 or the like."
        ) from error
    if not parts:
        raise BadPrompt(f"{name} has no sound in it: give a recording.")
    samples: Samples = np.concatenate(parts).astype(np.float32)
    return samples
