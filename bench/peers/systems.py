"""The systems that are compared: which worker loads what, and which ways of decoding it offers. Knows nothing of
processes and measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from environments import ENVIRONMENTS

OUTRIDER = "outrider"
TCMALLOC = "*/libtcmalloc_minimal.so.4"  # Debian's libtcmalloc-minimal4


@dataclass(frozen=True, slots=True)
class Engine:
    """One loading of a model by one library.

    Attributes:
        name: begins the names of its systems.
        worker: the script worker_<worker>.py.
        modes: ways of decoding over the same weights; the first needs no drafter where there are several.
        weights: outputs are compared among systems whose weights are the same.
        quantised: weights of 8 bits or less.
        model: which of the models that lie ready it loads: target, openvino, gguf or q8_0.
        environment: of the peer; None is the project's own.
        options: what else the worker is told.
        settings: environment variables of the worker.
    """

    name: str
    worker: str
    modes: tuple[str, ...]
    weights: str
    quantised: bool = False
    model: str = "target"
    environment: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def library(self) -> str:
        """The part of the name before the weights."""
        return self.name.partition("-")[0]

    def system(self, mode: str) -> str:
        """The name of one way of decoding."""
        return f"{self.name}-{mode}"

    @property
    def systems(self) -> list[str]:
        """The names of all of them."""
        return [self.system(mode) for mode in self.modes]


def engines(cores: Sequence[int]) -> list[Engine]:
    """Everything that can be measured, the libraries in turn.

    Args:
        cores: the CPUs to be used.
    """
    every: list[Engine] = []
    for dtype in ("float32", "bfloat16"):
        options = (("dtype", dtype), ("quantize", None))
        every.append(Engine(f"{OUTRIDER}-{dtype}", "outrider", ("none", "lookup"), dtype, options=options))
        options = (("dtype", dtype),)
        every.append(
            Engine(f"transformers-{dtype}", "transformers", ("plain", "lookup", "assisted"), dtype, options=options)
        )
        every += _one_mode_each(
            Engine(
                f"vllm-{dtype}",
                "vllm",
                ("plain", "ngram"),
                dtype,
                environment="vllm",
                options=options,
                settings=vllm_settings(cores),
            )
        )
    options = (("dtype", "float32"), ("quantize", "int8"))
    every.append(
        Engine(f"{OUTRIDER}-int8", "outrider", ("none", "lookup"), "int8 by Outrider", quantised=True, options=options)
    )
    openvino = Engine(
        "openvino-int8",
        "openvino",
        ("plain", "lookup"),
        "int8 by OpenVINO",
        quantised=True,
        model="openvino",
        environment="openvino",
    )
    every += _one_mode_each(openvino)
    for model, weights in (("gguf", "the GGUF file"), ("q8_0", "Q8_0 by llama.cpp")):
        llamacpp = Engine(
            f"llamacpp-{model}",
            "llamacpp",
            ("plain", "lookup10", "lookup2"),  # the binding's default, and what it advises on a CPU
            weights,
            quantised=True,
            model=model,
            environment="llamacpp",
        )
        every += _one_mode_each(llamacpp)
    return every


def vllm_settings(cores: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """vLLM's advice for CPUs: threads bound to cores, Intel's OpenMP, and tcmalloc where the system has it."""
    preloaded = [ENVIRONMENTS["vllm"].folder / "lib" / "libiomp5.so", *Path("/usr/lib").glob(TCMALLOC)]
    return (
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores))),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_USE_AOT_COMPILE", "0"),  # 0.32.0 cannot load on a CPU what it stores so; Inductor's own cache it can
        ("LD_PRELOAD", ":".join(str(library) for library in preloaded if library.exists())),
    )


def _one_mode_each(engine: Engine) -> list[Engine]:
    """The same engine once for each of its modes: its library chooses the drafter when it loads."""
    return [replace(engine, modes=(mode,), options=(*engine.options, ("mode", mode))) for mode in engine.modes]


def chosen(every: Sequence[Engine], names: Sequence[str]) -> list[Engine]:
    """The engines, restricted to the systems whose names begin with one of these; all of them if no name is given.

    Raises:
        ValueError: a name that begins no system's.
    """
    for name in names:
        if not any(system.startswith(name) for engine in every for system in engine.systems):
            known = ", ".join(system for engine in every for system in engine.systems)
            raise ValueError(f"there is no system {name!r}: name one of these, or how it begins: {known}.")
    kept = []
    for engine in every:
        modes = tuple(mode for mode in engine.modes if not names or engine.system(mode).startswith(tuple(names)))
        if modes:
            kept.append(replace(engine, modes=modes))
    return kept
