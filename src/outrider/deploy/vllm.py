"""vLLM's command line for what was chosen (0.32: `vllm/config/speculative.py`, `vllm/engine/arg_utils.py`)."""

from __future__ import annotations

import json
from typing import Any

from ..errors import BadOption
from ..measure.results import PLAIN
from ..tune.vllm import method_of
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
    config, steps, notes = _speculative(asked)
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
    if config is not None:
        serve += ["--speculative-config", json.dumps(config)]
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
    return Plan((*steps, Step(tuple(serve), where)), notes, config)


def _speculative(asked: Asked) -> tuple[dict[str, Any] | None, list[Step], tuple[str, ...]]:
    """`--speculative-config`, the commands that make what it names, and notes."""
    name, folder = asked.drafter
    if name == PLAIN:
        return None, [], ("Plain decoding takes no --speculative-config.",)
    found, notes = method_of(asked.config.drafter or PLAIN)
    if found is None:
        raise BadOption(f"{notes[0].rstrip('.')}; choose another drafter, or serve it by outrider serve.")
    measured = (asked.config.measured or {}).get("speculative_config")
    if isinstance(measured, str) and asked.length is None and json.loads(measured).get("method") == found["method"]:
        config = json.loads(measured)
    else:
        config = {**found, "num_speculative_tokens": asked.chain}
        if asked.tree:
            notes = (*notes, "vLLM drafts chains: the tree's depth is taken.")
    if asked.config.verifier == "block":
        config["rejection_sample_method"] = "block"
    steps: list[Step] = []
    if name in TRAINED:
        more = ["--k", str(config["num_speculative_tokens"])] if _LAYOUTS[name] == "speculators" else []
        path, steps = exported(name, folder, _LAYOUTS[name], "vllm", more)
        config["model"] = str(path)
    return config, steps, notes
