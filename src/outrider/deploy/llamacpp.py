"""llama.cpp's command line for what was chosen (`llama-server --help` and docs/speculative.md, 2026)."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadOption
from ..measure.results import PLAIN
from .plan import Asked, Plan, Step, elsewhere, exported

_TYPES = {
    "model": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "mtp": "draft-mtp",
    "lookup": "ngram-simple",
    "suffix": "ngram-simple",
}


def plan(asked: Asked) -> Plan:
    """The commands: models become GGUF files where they are none.

    Raises:
        BadOption: llama.cpp has no such method, or no such way of sharing work.
    """
    if asked.tensor > 1 or asked.pipeline > 1 or asked.machines > 1:
        raise BadOption(
            "llama.cpp spreads a model over the GPUs that it sees by itself (--split-mode): leave --tensor-parallel, "
            "--pipeline-parallel and --machines out."
        )
    steps: list[Step] = []
    target = _gguf(asked.target, steps)
    serve = ["llama-server", "-m", target]
    name, argument = asked.drafter
    notes: tuple[str, ...] = ()
    if name != PLAIN:
        if name not in _TYPES:
            raise BadOption(f"llama.cpp has no method like '{name}': choose one of {', '.join(sorted(_TYPES))}.")
        if name == "mtp" and argument:
            raise BadOption(
                "llama.cpp takes multi-token-prediction layers from the target's own file: write mtp alone, or serve "
                "these on vLLM."
            )
        serve += ["--spec-type", _TYPES[name]]
        if name == "model":
            serve += ["-md", _gguf(elsewhere(argument), steps)]
        elif name in ("eagle3", "dflash"):
            path, made = exported(name, argument, name, "llamacpp")
            steps += made
            serve += ["-md", _gguf(str(path), steps, ("--target-model-dir", asked.target))]
        serve += ["--spec-draft-n-max", str(asked.chain)]
        if name in ("lookup", "suffix"):
            notes = ("llama.cpp looks for longer matches than ours do: see --spec-ngram-simple-size-n.",)
    if asked.port is not None:
        serve += ["--port", str(asked.port)]
    if steps:
        notes = (*notes, "convert_hf_to_gguf.py comes with llama.cpp's sources.")
    return Plan((*steps, Step(tuple(serve))), notes)


def _gguf(model: str, steps: list[Step], more: tuple[str, ...] = ()) -> str:
    """A model as a GGUF file; the command that makes it is added where it is none."""
    if model.endswith(".gguf"):
        return model
    out = f"{Path(model).name}.gguf"
    if not Path(out).is_file():
        steps.append(Step(("python", "convert_hf_to_gguf.py", model, *more, "--outfile", out)))
    return out
