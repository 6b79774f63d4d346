"""The answer: methods in order, with reasons, memory and what to run next. Knows which drafters and commands exist."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..drafters import DRAFTERS
from .methods import METHODS, Method, Scene
from .rules import RULES
from .situation import Situation, as_size

_TIGHT = 0.9  # of the memory: beyond that longer contexts have no room
_PROMPTS = "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Asked:
    """What names the answer is to use.

    Attributes:
        target: as the caller named it, or None.
        draft_model: likewise.
        batch: see `Situation`.
        commands: of the command line, those that exist.
    """

    target: str | None
    draft_model: str | None
    batch: int
    commands: Collection[str]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench has to say of a method.

    Attributes:
        case: which configuration.
        policy: of it.
        speed: against plain decoding: of one request, or of all together where throughput was asked for.
        low, high: its interval, where there is one.
        verdict: "faster", "slower" or "indistinguishable".
        prompts: how many it stands on.
        acceptance_length: tokens per round with a draft.
    """

    case: str
    policy: str
    speed: float
    low: float | None
    high: float | None
    verdict: str | None
    prompts: int
    acceptance_length: float | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One method.

    Attributes:
        method: which.
        spec: of the drafter, with the caller's names filled in.
        points: by the rules.
        speaks_for, speaks_against: the reasons.
        ruled_out: why it cannot be, or None.
        memory: bytes that it adds; None without a target.
        total: bytes altogether; None without a target.
        measured: what a bench says, or None.
        commands: what to run next, in order.
    """

    method: Method
    spec: str
    points: int
    speaks_for: tuple[str, ...]
    speaks_against: tuple[str, ...]
    ruled_out: str | None
    memory: int | None
    total: int | None
    commands: tuple[str, ...]
    measured: Measured | None = None


def rank(situation: Situation, scene: Scene | None, asked: Asked) -> list[Recommendation]:
    """Every method whose drafter exists, the best first, those that are ruled out last.

    Args:
        situation: the answers.
        scene: for memory; None without a target.
        asked: names and commands.
    """
    found = [
        _weigh(method, situation, scene, asked)
        for method in METHODS
        if method.drafter in DRAFTERS and (not method.train or _trainable(method, asked))
    ]
    order = {method.name: place for place, method in enumerate(METHODS)}
    return sorted(found, key=lambda r: (r.ruled_out is not None, -r.points, order[r.method.name]))


def _trainable(method: Method, asked: Asked) -> bool:
    """Whether it can be trained here, or its drafter exists for nothing else."""
    return method.train in _trained_here(asked) or method.drafter == method.name


def _trained_here(asked: Asked) -> Collection[str]:
    """What `outrider train` takes."""
    if "train" not in asked.commands:
        return ()
    from ..train.methods import METHODS as TRAINED

    return TRAINED


def _weigh(method: Method, situation: Situation, scene: Scene | None, asked: Asked) -> Recommendation:
    applying = [rule for rule in RULES if method.name in rule.methods and rule.applies(situation)]
    ruled_out = next((rule.why for rule in applying if rule.points is None), None)
    points = method.worth + sum(rule.points or 0 for rule in applying)
    pros = tuple(rule.why for rule in applying if (rule.points or 0) > 0)
    cons = tuple(rule.why for rule in applying if (rule.points or 0) < 0)
    second = "translated" if situation.small_model is False else "model"
    spec = method.spec.replace("SECOND", second).replace("SMALL", asked.draft_model or "SMALL")
    told = Recommendation(method, spec, points, pros, cons, ruled_out, None, None, _commands(method, spec, asked))
    return told if scene is None else _with_memory(told, situation, scene)


def _with_memory(told: Recommendation, situation: Situation, scene: Scene) -> Recommendation:
    """The same with what it adds, and ruled out where it does not fit."""
    added = int(told.method.memory(scene))
    total = scene.target.weights + scene.target.cache(scene.tokens) + added
    told = replace(told, memory=added, total=total)
    limit = situation.memory
    if limit is None or not added:  # what adds nothing fits wherever the target itself does, from disk if need be
        return told
    if total > limit:
        why = f"it takes {as_size(total)} together with the target, and there are {as_size(limit)}"
        return replace(told, ruled_out=told.ruled_out or why)
    if total > _TIGHT * limit:
        why = f"it leaves {as_size(limit - total)} of {as_size(limit)} for longer contexts"
        return replace(told, points=told.points - 1, speaks_against=(*told.speaks_against, why))
    return told


def _commands(method: Method, spec: str, asked: Asked) -> tuple[str, ...]:
    """What to run next, of what exists."""
    target = asked.target or "TARGET"
    found = []
    if method.train in _trained_here(asked):
        out = f"runs/{method.train}"
        spec = spec.replace("HEAD", out)
        if "data" in asked.commands:
            found.append(f"outrider data --target {target} --prompts {_PROMPTS} --out runs/data")
        found.append(f"outrider train {method.train} --target {target} --data runs/data --out {out}")
    if method.name == "reference":
        found.append(f'outrider generate --target {target} --drafter reference --prediction FILE --chat "..."')
    elif "bench" in asked.commands:
        batch = f" --batch {asked.batch}" if asked.batch > 1 else ""
        found.append(f"outrider bench --target {target} --drafters {spec} --prompts {_PROMPTS}{batch}")
    else:
        batch = f" --batch {asked.batch}" if asked.batch > 1 else ""
        found.append(f"outrider generate --target {target} --drafter {spec} --prompts {_PROMPTS}{batch}")
    return tuple(found)
