"""vLLM's command line for what was chosen (0.32: `vllm/config/speculative.py`, `vllm/engine/arg_utils.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..checkpoints import is_drafter
from ..errors import BadOption
from ..measure.results import PLAIN
from ..tune.vllm import OWN_CLASS, Deployment, method_of
from .plan import TRAINED, Asked, Plan, Step, exported

_LAYOUTS = {"eagle3": "speculators", "dflash": "speculators", "eagle": "eagle", "medusa": "medusa"}
_HEAD = "HEAD_ADDRESS"


def plan(asked: Asked) -> Plan:
    """The commands.

    Raises:
        BadOption: vLLM has no such method, or the devices do not fall evenly on the machines.
    """
    devices = asked.tensor * asked.pipeline
    if asked.machines > 1 and devices % asked.machines:
        raise BadOption(
            f"{asked.tensor} x {asked.pipeline} devices do not fall evenly on {asked.machines} machines: change "
            "--tensor-parallel, --pipeline-parallel or --machines."
        )
    found, steps = _speculative(asked)
    notes = found.notes
    serve = ["vllm", "serve", asked.target]
    if asked.config.dtype:
        serve += ["--dtype", asked.config.dtype]
    if asked.trust_remote_code:
        serve.append("--trust-remote-code")
    if asked.config.batch and asked.config.batch > 1:
        serve += ["--max-num-seqs", str(asked.config.batch)]
    if asked.tensor > 1:
        serve += ["--tensor-parallel-size", str(asked.tensor)]
    if asked.pipeline > 1:
        serve += ["--pipeline-parallel-size", str(asked.pipeline)]
    if asked.port is not None:
        serve += ["--port", str(asked.port)]
    serve += found.arguments
    where = "this machine"
    if asked.machines > 1:
        serve += ["--distributed-executor-backend", "ray"]
        where = "the first machine"
        steps = [Step(step.argv, "every machine") for step in steps]
        steps.append(Step(("ray", "start", "--head", "--port", "6379"), where))
        steps.append(Step(("ray", "start", f"--address={_HEAD}:6379"), "every other machine"))
        notes = (*notes, f"{_HEAD} is the first machine's address; model and drafter lie at the same paths everywhere.")
    if asked.config.quantize:
        notes = (*notes, f"quantize = {asked.config.quantize!r} is ours: vLLM serves the weights as they are.")
    return Plan((*steps, Step(tuple(serve), where)), notes, found.config)


def _speculative(asked: Asked) -> tuple[Deployment, list[Step]]:
    """What vLLM is told, and the commands that make what that names."""
    name, folder = asked.drafter
    if name == PLAIN:
        return Deployment(None, ("Plain decoding takes no --speculative-config.",)), []
    method = method_of(asked.config.drafter or PLAIN)
    if method.config is None:
        raise BadOption(f"{method.notes[0].rstrip('.')}; choose another drafter, or serve it by outrider serve.")
    measured = _measured(asked, method)
    config, told, notes = {**method.config}, method.told, method.notes
    if measured is not None:
        config, told = measured
    else:
        config["num_speculative_tokens"] = asked.chain
        if asked.tree:
            notes = (*notes, "vLLM drafts chains: the tree's depth is taken.")
    if asked.config.verifier == "block":
        config["rejection_sample_method"] = "block"
    steps: list[Step] = []
    if name in TRAINED:
        more = ["--k", str(config["num_speculative_tokens"])] if _LAYOUTS[name] == "speculators" else []
        path, steps = exported(name, folder, _LAYOUTS[name], "vllm", more)
        config["model"] = str(path)
    elif name == "mtp" and is_drafter(Path(folder).expanduser()):
        raise BadOption(
            "vLLM 0.32 computes such a layer with the target's own configuration, not with the layer's: serve it by "
            "outrider serve, or train eagle3 for vLLM."
        )
    return Deployment(config, notes, told), steps


def _measured(asked: Asked, method: Deployment) -> tuple[dict[str, Any], dict[str, str]] | None:
    """What `tune` found for this drafter and for lengths that nobody asked to be otherwise."""
    found = asked.config.measured or {}
    if asked.length is not None or not isinstance(found.get("speculative_config"), str):
        return None
    config, told = json.loads(found["speculative_config"]), {}
    if isinstance(found.get("additional_config"), str):
        told = json.loads(found["additional_config"])["outrider"]
    assert method.config is not None, "it was asked for"
    same = config.get("method") == method.config["method"]
    if same and config["method"] == OWN_CLASS:
        same = config.get("model") == method.config["model"] and told.get("drafter") == method.told.get("drafter")
    return (config, told) if same else None
