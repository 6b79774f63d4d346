"""From raw runs to medians, ratios, differences and a table. Knows nothing of how the runs came about.

Raw runs are `runs[system][prompt]`, a list of a worker's answers (see protocol.py).

Definitions
    first s         median seconds from the request to its first tokens: prefill and one step
    decode tok/s    median of (tokens - those that came first) / (seconds - first s)
    whole tok/s     median of tokens / seconds
    x reference     decode tok/s over that of the reference system
    x own plain     decode tok/s over that of the same engine's plain decoding
    Outrider over   decode tok/s of the fastest Outrider system of the same kind (quantised or not) over this system's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from systems import OUTRIDER, Engine

Runs = dict[str, dict[str, list[dict[str, Any]]]]
COLUMNS = ("first s", "decode tok/s", "whole tok/s", "x reference", "x own plain", "Outrider over", "tokens")


def summary(engines: Sequence[Engine], runs: Runs, prompts: Sequence[str], reference: str) -> dict[str, Any]:
    """The figures of each prompt and system, named by the table's columns."""
    return {prompt: _figures(engines, runs, prompt, reference) for prompt in prompts}


def _figures(engines: Sequence[Engine], runs: Runs, prompt: str, reference: str) -> dict[str, dict[str, Any]]:
    speeds: dict[str, float | None] = {}
    best: dict[bool, float] = {}
    rows: dict[str, dict[str, Any]] = {}
    for engine, _, system in _systems(engines):
        if not (answers := runs.get(system, {}).get(prompt)):
            continue
        speeds[system] = speed = _median(_decode_speed, answers)
        if engine.library == OUTRIDER and speed:
            best[engine.quantised] = max(speed, best.get(engine.quantised, 0.0))
        rows[system] = {
            "first s": _median(lambda answer: answer["first_seconds"], answers),
            "decode tok/s": speed,
            "whole tok/s": _median(lambda answer: len(answer["ids"]) / answer["seconds"], answers),
            "tokens": len(answers[-1]["ids"]),
        }
    plain = {engine.name: speeds.get(system) for engine, mode, system in _systems(engines) if mode in ("plain", "none")}
    for engine, _, system in _systems(engines):
        if system in rows:
            rows[system]["x reference"] = _ratio(speeds[system], speeds.get(reference))
            rows[system]["x own plain"] = _ratio(speeds[system], plain.get(engine.name))
            rows[system]["Outrider over"] = _ratio(best.get(engine.quantised), speeds[system])
    return rows


def differences(
    engines: Sequence[Engine], runs: Runs, prompts: Sequence[str], decode: Callable[[list[int]], str]
) -> list[dict[str, Any]]:
    """Where systems with the same weights wrote different tokens, and where one system did so between repeats.

    The first plain system of another library is what the others are held against, if there is one.
    """
    found: list[dict[str, Any]] = []
    for prompt in prompts:
        standards: dict[str, tuple[str, list[int]]] = {}
        ordered = sorted(_systems(engines), key=lambda entry: (entry[0].library == OUTRIDER, entry[1] != "plain"))
        for engine, _, system in ordered:
            answers = runs.get(system, {}).get(prompt, [])
            for answer in answers:
                against, ids = standards.setdefault(engine.weights, (system, answer["ids"]))
                if answer["ids"] != ids:
                    place = {"prompt": prompt, "weights": engine.weights, "system": system, "against": against}
                    found.append({**place, **_departure(answer["ids"], ids, decode)})
                    break
    return found


def _departure(ids: list[int], standard: list[int], decode: Callable[[list[int]], str]) -> dict[str, Any]:
    same = next(
        (index for index, (one, other) in enumerate(zip(ids, standard, strict=False)) if one != other),
        min(len(ids), len(standard)),
    )
    around = slice(same, same + 8)
    return {"from token": same, "wrote": decode(ids[around]), "instead of": decode(standard[around])}


def table(figures: dict[str, dict[str, Any]]) -> str:
    """One prompt's figures for the terminal."""
    lines = ["| system | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for system, row in figures.items():
        lines.append(f"| {system} | " + " | ".join(_cell(row[column]) for column in COLUMNS) + " |")
    return "\n".join(lines)


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _systems(engines: Sequence[Engine]) -> list[tuple[Engine, str, str]]:
    return [(engine, mode, engine.system(mode)) for engine in engines for mode in engine.modes]


def _decode_speed(answer: dict[str, Any]) -> float | None:
    tokens = len(answer["ids"]) - answer["first_tokens"]
    seconds = answer["seconds"] - answer["first_seconds"]
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _median(figure: Callable[[dict[str, Any]], float | None], answers: Sequence[dict[str, Any]]) -> float | None:
    values = [value for value in map(figure, answers) if value is not None]
    return median(values) if values else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None
