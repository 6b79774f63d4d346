"""What peers load besides the target's own folder, made once and kept in the cache folder: OpenVINO's int8 export and
llama.cpp's Q8_0 file. Knows nothing of workers and measuring."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from environments import ENVIRONMENTS, Environment

from outrider.folders import cache_folder

HERE = Path(__file__).parent


class NotReady(Exception):
    """A system cannot be measured here; the message says why in one sentence."""


def model_for(kind: str, target: Path, gguf: Path | None) -> Path:
    """The folder or file that an engine's `model` stands for.

    Args:
        kind: target, openvino, gguf or q8_0.
        target: the model's folder.
        gguf: the same model as a GGUF file.

    Raises:
        NotReady: it was not given, or could not be made.
    """
    if kind == "target":
        return target
    if kind == "openvino":
        return _openvino(target)
    if gguf is None:
        raise NotReady("no GGUF file was given: pass --gguf (get_gguf.py makes one)")
    return gguf if kind == "gguf" else _q8_0(gguf)


def interpreter(name: str) -> Environment:
    """A peer's environment.

    Raises:
        NotReady: the peer is not installed.
    """
    environment = ENVIRONMENTS[name]
    if not environment.python.exists():
        raise NotReady(f"there is no environment {environment.folder}: python bench/peers/install.py {name}")
    return environment


def _openvino(target: Path) -> Path:
    """The target exported to OpenVINO with int8 weights by optimum-intel."""
    environment = interpreter("openvino")
    tool = environment.folder / "bin" / "optimum-cli"
    order = [tool, "export", "openvino", "--task", "text-generation-with-past", "--weight-format", "int8"]
    return _made(_place(target, "openvino-int8"), [*order, "--model", target])


def _q8_0(gguf: Path) -> Path:
    """The GGUF file quantised anew to Q8_0: what its own quantisation lost stays lost."""
    environment = interpreter("llamacpp")
    return _made(_place(gguf, "q8_0.gguf"), [environment.python, HERE / "quantise_llamacpp.py", gguf])


def _place(source: Path, kind: str) -> Path:
    """Where something made from a model is kept: another model under the same path gets another place."""
    files = sorted(path for path in (source.iterdir() if source.is_dir() else [source]) if path.is_file())
    facts = [f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return cache_folder() / "bench" / "models" / f"{source.stem if source.is_file() else source.name}-{digest}-{kind}"


def _made(place: Path, order: Sequence[str | Path]) -> Path:
    """Run the order with a place of its own as last argument, unless what it makes is there already.

    Raises:
        NotReady: it failed.
    """
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    begun = place.with_name(f"begun-{place.name}")
    _remove(begun)
    settings = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*order, begun], capture_output=True, text=True, env=settings, check=False)
    if done.returncode or not begun.exists():
        _remove(begun)
        words = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotReady(
            f"{Path(order[0]).name} could not make {place.name}: {words[-1] if words else 'it said nothing'}"
        )
    begun.rename(place)
    return place


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
