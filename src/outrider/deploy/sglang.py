"""SGLang's command line for what was chosen (`sglang.launch_server --help`, 2026)."""

from __future__ import annotations

import json
from pathlib import Path

from ..checkpoints import is_drafter
from ..errors import BadOption
from ..measure.results import PLAIN
from .plan import Asked, Plan, Step, elsewhere, exported

_ALGORITHMS = {
    "eagle3": "EAGLE3",
    "eagle": "EAGLE",
    "dflash": "DFLASH",
    "mtp": "NEXTN",
    "model": "STANDALONE",
    "lookup": "NGRAM",
    "suffix": "NGRAM",
}
_WIDTH = 8  # children that our trees look at of each node
_VARIANTS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "qk_norm")


def plan(asked: Asked) -> Plan:
    """The commands, one for each machine.

    Raises:
        BadOption: SGLang has no such method.
    """
    speculative, steps, notes = _speculative(asked)
    serve = ["python", "-m", "sglang.launch_server", "--model-path", asked.target]
    if asked.config.dtype:
        serve += ["--dtype", asked.config.dtype]
    if asked.trust_remote_code:
        serve.append("--trust-remote-code")
    if asked.tensor > 1:
        serve += ["--tp-size", str(asked.tensor)]
    if asked.pipeline > 1:
        serve += ["--pp-size", str(asked.pipeline)]
    if asked.port is not None:
        serve += ["--port", str(asked.port)]
    serve += speculative
    if asked.machines == 1:
        return Plan((*steps, Step(tuple(serve))), notes)
    steps = [Step(step.argv, "every machine") for step in steps]
    for rank in range(asked.machines):
        more = ("--nnodes", str(asked.machines), "--node-rank", str(rank), "--dist-init-addr", "HEAD_ADDRESS:5000")
        steps.append(Step((*serve, *more), f"machine {rank + 1}"))
    return Plan(tuple(steps), (*notes, "HEAD_ADDRESS is the first machine's address."))


def _speculative(asked: Asked) -> tuple[list[str], list[Step], tuple[str, ...]]:
    name, argument = asked.drafter
    if name == PLAIN:
        return [], [], ()
    if name not in _ALGORITHMS:
        raise BadOption(f"SGLang has no method like '{name}': choose one of {', '.join(sorted(_ALGORITHMS))}.")
    options, length = ["--speculative-algorithm", _ALGORITHMS[name]], asked.chain
    steps: list[Step] = []
    if name in ("lookup", "suffix"):
        note = "SGLang's n-gram matching is its own: acceptance will differ from what was measured here."
        return [*options, "--speculative-num-draft-tokens", str(length)], steps, (note,)
    if name in ("eagle3", "eagle", "dflash"):
        more = ["--engine", "sglang"] if name == "eagle" else []
        path, steps = exported(name, argument, name, "sglang", more)
        _check_variants(name, Path(argument).expanduser())
        options += ["--speculative-draft-model-path", str(path)]
    elif argument:
        where, steps = _layers(argument) if name == "mtp" else (elsewhere(argument), [])
        options += ["--speculative-draft-model-path", where]
    if name == "dflash":
        return [*options, "--speculative-num-draft-tokens", str(length + 1)], steps, ()
    nodes = (asked.config.policy or "").partition(",")[2]
    topk, tokens = (_WIDTH, int(nodes) + 1) if asked.tree and name != "mtp" else (1, length + 1)
    options += ["--speculative-num-steps", str(length), "--speculative-eagle-topk", str(topk)]
    return [*options, "--speculative-num-draft-tokens", str(tokens)], steps, ()


def _check_variants(name: str, folder: Path) -> None:
    """That SGLang computes the head as it was trained; it would draft badly and say nothing.

    Raises:
        BadOption: it has norms that SGLang's class has not.
    """
    config = folder / "config.json"
    if name != "eagle3" or not config.is_file():
        return
    found = json.loads(config.read_text(encoding="utf-8"))
    shape = found.get("shape", found)
    has = [variant for variant in _VARIANTS if shape.get(variant)]
    if has:
        raise BadOption(
            f"The head in {folder} has {' and '.join(has)}, which SGLang's EAGLE-3 does not compute: deploy it "
            "on vLLM, or train one without (--config)."
        )


def _layers(argument: str) -> tuple[str, list[Step]]:
    """Where the layers of `mtp:ARGUMENT` lie: those of `outrider train mtp` are exported, a checkpoint's are there."""
    if not is_drafter(Path(argument).expanduser()):
        return elsewhere(argument), []
    path, steps = exported("mtp", argument, "mtp", "sglang")
    return str(path), steps
