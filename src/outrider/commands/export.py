"""`outrider export`: a trained drafter in the layout that other engines load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoints, features
from ..api import Outrider
from ..checkpoints import Checkpoint
from ..drafters import TRAINED
from ..drafters.trained import identify
from ..errors import BadOption
from ..layouts.base import Layout, Serving
from ..layouts.folder import read_config
from ..layouts.reading import LAYOUTS, is_published, write_published
from ..loading import Loader
from .settings import Settings
from .showing import versions

TOKENS = 3  # drafted per round, where a layout says it and nobody else does


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        drafter: its folder, or METHOD:FOLDER.
        layout: by name.
        out: folder to be written.
        target: what it drafts for; None for the name under which it was trained.
        tokens: drafted per round, for layouts that say it.
        engine: whose names are to be written, for layouts where engines differ.
        offline, trust_remote_code: see `outrider.load`.
    """

    drafter: str
    layout: str
    out: Path
    target: str | None = None
    tokens: int | None = None
    engine: str | None = None
    offline: bool = False
    trust_remote_code: bool = False


def run(wanted: Wanted, *, show: bool) -> dict[str, Any]:
    """Write it; the document is what `--json` prints."""
    layout = _layout(wanted)
    check_new_folder(wanted.out)
    checkpoint, folder = read_trained(wanted.drafter)
    settings = _settings(wanted, checkpoint)
    notes = write_published(wanted.out, layout, checkpoint, _serving(wanted, layout, checkpoint, folder, settings))
    if show:
        print(f"{wanted.out}: {checkpoint.manifest.method} for {settings.target}, in the layout {layout.name}")
        for note in notes:
            print(note)
    return {
        "out": str(wanted.out),
        "layout": layout.name,
        "method": checkpoint.manifest.method,
        "target": settings.target,
        "notes": list(notes),
        **versions(),
    }


def check_new_folder(out: Path) -> None:
    """Refuse, before any work, a folder that is there.

    Raises:
        BadOption: it is.
    """
    if out.exists():
        raise BadOption(f"{out} exists and is never overwritten: remove it, or name another folder with --out.")


def read_trained(drafter: str) -> tuple[Checkpoint, Path]:
    """A drafter of ours, by its folder or as METHOD:FOLDER.

    Raises:
        BadOption: it is in a published layout already, or of another method.
        ModelNotFound: there is none.
    """
    name, _, rest = drafter.partition(":")
    method, folder = (name, Path(rest).expanduser()) if rest and name in TRAINED else (None, Path(drafter).expanduser())
    if is_published(folder):
        raise BadOption(f"{folder} is in a published layout already: to write it in another, outrider import it first.")
    if method is None:
        method = str(read_config(folder).get("method"))
    return checkpoints.read(folder, method), folder


def _layout(wanted: Wanted) -> Layout:
    if wanted.layout not in LAYOUTS:
        raise BadOption(f"There is no layout {wanted.layout!r}: choose one of {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[wanted.layout]
    if wanted.tokens is not None and not layout.says_tokens:
        raise BadOption(f"The layout {layout.name} does not say how many tokens are drafted: leave --k out.")
    if wanted.engine is not None and wanted.engine not in layout.engines:
        choice = " or ".join(layout.engines)
        remedy = f"choose {choice}" if choice else "leave --engine out, as one folder serves every engine"
        raise BadOption(f"The layout {layout.name} has no names of its own for {wanted.engine!r}: {remedy}.")
    return layout


def _settings(wanted: Wanted, checkpoint: Checkpoint) -> Settings:
    name = wanted.target or checkpoint.manifest.target.name
    return Settings(name, "none", "match", None, None, None, wanted.offline, wanted.trust_remote_code)


def _serving(wanted: Wanted, layout: Layout, checkpoint: Checkpoint, folder: Path, settings: Settings) -> Serving:
    """The target as engines know it: from its config alone, and from its weights where the layout wants some."""
    loader = Loader(offline=wanted.offline, trust_remote_code=wanted.trust_remote_code)
    where, whole = loader.find(settings.target), loader.config(settings.target)
    config, target = whole.get_text_config(), checkpoint.manifest.target
    for what, mine, theirs in (
        ("a vocabulary of", target.vocabulary, config.vocab_size),
        ("states of width", target.width, config.hidden_size),
        ("a stack of layers of", target.depth, config.num_hidden_layers),
    ):
        if mine != theirs:
            raise BadOption(
                f"The drafter in {folder} was trained for a target with {what} {mine}, and {settings.target} has "
                f"{theirs}: name the target that it was trained for."
            )
    loaded = _once(lambda: _load(settings, checkpoint, folder))

    def rows(ids: Tensor) -> Tensor:
        return features.output(loaded().target, ids).linear.weight.detach().cpu()

    def table() -> Tensor:
        target = loaded().target
        return features.embedding(target)(torch.arange(target.vocabulary)).detach().cpu()

    return Serving(
        name=str(where.resolve()) if where is not None else settings.target,
        architectures=tuple(whole.architectures or ()),
        positions=int(getattr(config, "max_position_embeddings", 0) or 2048),
        tokens=wanted.tokens or TOKENS,
        engine=wanted.engine or next(iter(layout.engines), "vllm"),
        rows=rows,
        table=table,
        scaled=features.scales_embeddings(config),
    )


def _load(settings: Settings, checkpoint: Checkpoint, folder: Path) -> Outrider:
    llm = replace(settings, dtype="float32").load()  # which holds what the files say, whatever they are written in
    checkpoint.manifest.target.check(identify(llm.target, settings.target), folder)
    return llm


def _once(load: Callable[[], Outrider]) -> Callable[[], Outrider]:
    """The same, loaded at most once and only if it is asked for."""
    found: list[Outrider] = []

    def get() -> Outrider:
        if not found:
            found.append(load())
        return found[0]

    return get
