"""`outrider.toml`: which target, drafter and rules to use, written by `outrider tune` or by hand.

Strict at the edge: a key that is not known here, or a value of the wrong kind, is refused with the key and the file.
Knows no models and no commands; whether a drafter or a policy exists is found out where it is made.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import BadOption

NAME = "outrider.toml"
_LARGEST = 1 << 20  # bytes


class Config(BaseModel):
    """The file. Everything may be left out, and then is what it is by default.

    Attributes:
        target, drafter, verifier, policy, dtype, device, offline, fast, quantize, device_map, draft_device,
            draft_quantize, compile, prefill_chunk: see `outrider.load`.
        batch: prompts served together.
        measured: what `tune` found, for people and for `deploy`; nothing reads it to decode.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    target: str | None = None
    drafter: str | None = None
    verifier: str | None = None
    policy: str | None = None
    dtype: str | None = None
    device: str | None = None
    offline: bool | None = None
    fast: bool | None = None
    quantize: str | None = None
    device_map: str | None = None
    draft_device: str | None = None
    draft_quantize: str | None = None
    compile: bool | None = None
    prefill_chunk: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1)
    measured: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """What the file sets, but for what was measured."""
        return {name: value for name, value in self if value is not None and name != "measured"}


def read(path: Path) -> Config:
    """Read a file.

    Raises:
        BadOption: missing, too large, no TOML, an unknown key, or a value of the wrong kind; with key and file.
    """
    if not path.is_file():
        raise BadOption(f"There is no configuration {path}: check the path, or let `outrider tune` write one.")
    if path.stat().st_size > _LARGEST:
        raise BadOption(f"{path} is larger than {_LARGEST >> 20} MiB, so it is no configuration: name another file.")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadOption(f"{path} is no TOML ({error}): correct it.") from error
    if "trust_remote_code" in found:
        raise BadOption(
            f"{path} sets 'trust_remote_code', which a file may not decide: remove it, and give --trust-remote-code."
        )
    try:
        return Config.model_validate(found)
    except ValidationError as error:
        raise BadOption(_told(error, path)) from error


def load_config(path: str | Path) -> dict[str, Any]:
    """The arguments of `outrider.load` that a file sets: `outrider.load(**outrider.load_config("outrider.toml"))`.

    `batch` is not among them, since `load` has no use for it.

    Args:
        path: of the file, as `outrider tune` writes it.

    Raises:
        BadOption: see `read`.
    """
    given = read(Path(path)).given()
    given.pop("batch", None)
    return given


def check_new(path: Path) -> None:
    """Refuse, before any work, a file that could not be written.

    Raises:
        BadOption: it exists, or its folder does not.
    """
    if path.exists():
        raise BadOption(f"{path} exists and is never overwritten: remove it, or name another file with --out.")
    if not path.parent.is_dir():
        raise BadOption(f"There is no folder {path.parent}: make it first.")


def write(config: Config, path: Path, comment: str) -> None:
    """Write a new file that `check_new` has passed, with a comment at its head; a file that is there stays."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    text = tomli_w.dumps(config.model_dump(exclude_none=True))
    with path.open("x", encoding="utf-8") as file:
        file.write(f"{lines}\n{text}")


def _told(error: ValidationError, path: Path) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = ", ".join(name for name in Config.model_fields if name != "measured")
        return f"{path} has the key {key!r}, which is not known: use {known}."
    kind = first["msg"].removeprefix("Input should be ")
    return f"{path} sets {key!r} to {first['input']!r}: it has to be {kind}."
