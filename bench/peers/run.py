"""Outrider against its peers: the same model, prompts and lengths, greedy, one request at a time.

usage: python bench/peers/run.py --target FOLDER [--gguf FILE] [--systems NAME,...] [--prompts edit,chat,code]
                                 [--tokens N] [--repeats N] [--assistant FOLDER] [--reference SYSTEM] [--out FILE]
Run it in the project's own environment. Peers live in theirs (install.py makes them); what is missing is skipped by
name. A system's name may be shortened to how it begins: `--systems outrider,openvino-int8-lookup`.

Each repeat takes the systems in turn. A turn starts one worker, lets it load and warm up on every prompt, asks for each
prompt in each of its modes, and ends it: only one process computes at any time, and only one model lies in memory. Raw
answers go to FILE after every turn, with medians, ratios and differences.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare import HERE, NotReady, interpreter, model_for
from report import Runs, differences, summary, table
from systems import Engine, chosen, engines
from transformers import AutoTokenizer, GenerationConfig
from workers import Failed, Worker

from outrider.folders import cache_folder
from outrider.loading import demo_folder
from outrider.measure import machine

sys.path.append(str(HERE.parent))
from common import PROMPTS, chat_ids

WARM_UP_TOKENS = 8
SLACK = 64  # room for drafts past the last token


@dataclass
class Bench:
    """What is measured, and what has come of it.

    Attributes:
        options: the command's.
        cores: the CPUs that workers use.
        machine: what it was before the first worker started.
        tokenizer: the target's.
        prompts: ids by name.
        stop_ids: what ends the model's answers.
        runs: see report.py.
        details: engine -> what its worker says it has loaded.
        skipped: system -> why it was not measured, or not to the end.
    """

    options: argparse.Namespace
    cores: list[int]
    machine: dict[str, Any]
    tokenizer: Any
    prompts: dict[str, list[int]]
    stop_ids: list[int]
    runs: Runs = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def turn(self, engine: Engine) -> None:
        """Measure one engine once; what cannot be measured is noted and not tried again."""
        modes = [mode for mode in engine.modes if engine.system(mode) not in self.skipped]
        if not modes:
            return
        try:
            worker = self._start(engine)
        except (NotReady, Failed) as reason:
            self._skip(map(engine.system, modes), str(reason))
            return
        with worker:
            self.details[engine.name] = worker.details
            for warm in (True, False):
                for prompt in self.prompts:
                    for mode in modes:
                        self._ask(worker, engine, mode, prompt, warm=warm)

    def _start(self, engine: Engine) -> Worker:
        python = interpreter(engine.environment).python if engine.environment else Path(sys.executable)
        source = str(model_for(engine.model, self.options.target, self.options.gguf))
        context = max(map(len, self.prompts.values())) + self.options.tokens + SLACK
        options = {
            "model": source,
            "threads": len(self.cores),
            "context": context,
            "assistant": str(self.options.assistant) if self.options.assistant else None,
            **dict(engine.options),
        }
        settings = {"HF_HUB_OFFLINE": "1", **dict(engine.settings)}
        logs = cache_folder() / "bench" / "peers-logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{engine.system(engine.modes[0])}.log"
        return Worker(python, HERE / f"worker_{engine.worker}.py", options, settings, log)

    def _ask(self, worker: Worker, engine: Engine, mode: str, prompt: str, *, warm: bool) -> None:
        system = engine.system(mode)
        if system in self.skipped:
            return
        tokens = min(WARM_UP_TOKENS, self.options.tokens) if warm else self.options.tokens
        request = {"ids": self.prompts[prompt], "tokens": tokens, "mode": mode, "stop_ids": self.stop_ids}
        try:
            answer = worker.ask(request)
        except Failed as reason:
            self._skip([system] if worker.alive else map(engine.system, engine.modes), str(reason))
            return
        if not warm:
            self.runs.setdefault(system, {}).setdefault(prompt, []).append(answer)
            print(f"  {system}, {prompt}: {len(answer['ids'])} tokens in {answer['seconds']:.2f} s", flush=True)

    def _skip(self, systems: Iterable[str], reason: str) -> None:
        for system in systems:
            self.skipped.setdefault(system, reason)
            print(f"  {system} is skipped: {reason}", flush=True)

    def document(self, every: Sequence[Engine]) -> dict[str, Any]:
        """Everything known so far, the raw answers last."""
        names = list(self.prompts)
        return {
            "bench": "peers",
            "options": {name: str(value) for name, value in vars(self.options).items()},
            "machine": self.machine,
            "prompt_tokens": {name: len(ids) for name, ids in self.prompts.items()},
            "summary": summary(every, self.runs, names, self.options.reference),
            "differences": differences(every, self.runs, names, self.tokenizer.decode),
            "skipped": self.skipped,
            "details": self.details,
            "runs": self.runs,
        }


def arguments() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp; get_gguf.py fetches two")
    parser.add_argument(
        "--assistant", type=Path, help="the draft model of assisted decoding; the demo model by default"
    )
    parser.add_argument("--systems", default="", help="names or beginnings of names, with commas; all by default")
    parser.add_argument("--prompts", default=",".join(PROMPTS), help="names, with commas")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per answer")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each system")
    parser.add_argument("--reference", default="transformers-float32-plain", help="the system of `x reference`")
    parser.add_argument("--out", type=Path, default=cache_folder() / "bench" / "peers.json")
    options = parser.parse_args()
    unknown = sorted(set(options.prompts.split(",")) - set(PROMPTS))
    if unknown:
        parser.error(f"there is no prompt {', '.join(unknown)}: choose from {', '.join(PROMPTS)}.")
    for path in (options.target / "config.json", options.gguf, options.assistant):
        if path is not None and not path.exists():
            parser.error(f"there is no {path}: check the path.")
    return options


def prompt_ids(tokenizer: Any, message: str) -> list[int]:
    """A user's message through the chat template, or as it is for a model without one."""
    return chat_ids(tokenizer, message) if tokenizer.chat_template else list(tokenizer(message)["input_ids"])


def stop_ids(target: Path) -> list[int]:
    """The ids that end an answer, as the model's own files say."""
    ids = GenerationConfig.from_pretrained(target).eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])


def main() -> None:
    """Measure and report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Ended by a signal."))  # so that workers are ended as well
    options = arguments()
    cores = sorted(os.sched_getaffinity(0))
    try:
        every = chosen(engines(cores), [name for name in options.systems.split(",") if name])
    except ValueError as error:
        sys.exit(f"{error}")
    if options.assistant is None and any("assisted" in engine.modes for engine in every):
        options.assistant = demo_folder()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = {name: prompt_ids(tokenizer, PROMPTS[name]) for name in options.prompts.split(",")}
    bench = Bench(options, cores, machine.describe(), tokenizer, prompts, stop_ids(options.target))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for repeat in range(options.repeats):
        for engine in every:
            print(f"repeat {repeat + 1} of {options.repeats}: {engine.name}", flush=True)
            bench.turn(engine)
            options.out.write_text(json.dumps(bench.document(every), indent=1))
    document = bench.document(every)
    for prompt, figures in document["summary"].items():
        print(f"\n{prompt}, {len(prompts[prompt])} tokens\n{table(figures)}")
    for difference in document["differences"]:
        print("\nDifferent tokens: " + json.dumps(difference, ensure_ascii=False), end="")
    for system, reason in bench.skipped.items():
        print(f"\nSkipped: {system}: {reason}", end="")
    print(f"\n\nRaw answers: {options.out}")
    print(json.dumps({name: part for name, part in document.items() if name != "runs"}))


if __name__ == "__main__":
    main()
