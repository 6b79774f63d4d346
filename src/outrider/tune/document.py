"""What tuning found, as a document and as a configuration. Knows no terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import speed
from ..config import Config
from ..measure import machine
from ..measure.costs import FREE
from ..measure.results import PLAIN
from .search import Prediction, Recorded, Setting, best, front
from .tuning import Contender, Tuning
from .validation import EXPECTED, error
from .vllm import Deployment, deployment

SCHEMA = 1


def document(tuning: Tuning, prompts: dict[str, Any]) -> dict[str, Any]:
    """Everything, for JSON; `schema` counts up when a name changes its meaning. Seconds and tokens per second.

    Args:
        tuning: what was found.
        prompts: what is to be said of the prompts.
    """
    kept = front(tuning.predictions)
    vllm = deployed(tuning)
    return {
        "schema": SCHEMA,
        "configuration": tuning.configuration,
        "prompts": prompts | {"recorded": tuning.prompts},
        "max_new_tokens": tuning.wanted.max_new_tokens,
        "verifier": tuning.wanted.verifier,
        "temperature": tuning.wanted.temperature,
        "goal": tuning.wanted.goal,
        "interrupted": tuning.interrupted,
        "checks": checks(tuning),
        "costs": tuning.costs.as_dict(),
        "drafters": [_drafter(run) for run in tuning.recorded],
        "predictions": [_prediction(one) | {"front": one in kept} for one in tuning.predictions],
        "contenders": [_contender(one) for one in tuning.contenders],
        "chosen": _setting(tuning.chosen.setting),
        "vllm": {
            "speculative_config": vllm.config,
            "additional_config": vllm.additional,
            "notes": list(vllm.notes),
        },
    }


def checks(tuning: Tuning) -> dict[str, Any]:
    """The two questions of the textbooks, each with yes or no and the figures behind it."""
    context = min(context for _, context in tuning.costs.lines)
    line = tuning.costs.lines[1, context]
    knee = tuning.costs.knee(1, context)
    shares = []
    for drafter in tuning.wanted.drafters:
        found = best_of(tuning, drafter)
        shares.append(
            {
                "drafter": drafter,
                "shape": None if found.setting.shape is None else found.setting.shape.name,
                "batch": found.setting.batch,
                "accepted": found.behaviour.rate,
                "tokens_per_pass": found.behaviour.tokens,
                "needed": found.needed,
                "enough": found.behaviour.tokens > found.needed,
            }
        )
    return {
        "several_tokens_cost_one": {
            "answer": knee > 1,
            "up_to": knee,
            "free": FREE,
            "context": context,
            "ratios": {cost.width: tuning.costs.ratio(cost) for cost in line},
        },
        "accepted_enough": {"answer": any(share["enough"] for share in shares), "drafters": shares},
    }


def best_of(tuning: Tuning, drafter: str) -> Prediction:
    """The best that is predicted of one drafter."""
    return best([one for one in tuning.predictions if one.setting.drafter == drafter], tuning.wanted.goal)


def deployed(tuning: Tuning) -> Deployment:
    """What was chosen, for vLLM."""
    return deployment(tuning.chosen.setting, tuning.wanted.verifier, tuning.predictions)


def off(tuning: Tuning) -> list[float]:
    """The errors of the predicted speedups that were put to the test."""
    return [
        error(one.predicted.speedup, one.measured.speedup)
        for one in tuning.contenders
        if one.predicted is not None and one.setting.drafter != PLAIN
    ]


def configured(tuning: Tuning, given: dict[str, Any], prompts: dict[str, Any]) -> Config:
    """The file that makes every command use what was chosen.

    Args:
        tuning: what was found.
        given: how the target is loaded, as the caller said it.
        prompts: what is to be said of the prompts.
    """
    setting = tuning.chosen.setting
    chosen: dict[str, Any] = {"batch": setting.batch, "drafter": setting.drafter}
    if setting.drafter != PLAIN:
        chosen |= {"policy": setting.policy, "verifier": tuning.wanted.verifier}
    return Config(**given, **chosen, measured=_legible(_measured(tuning, prompts)))


def _measured(tuning: Tuning, prompts: dict[str, Any]) -> dict[str, Any]:
    """What the choice rests on; TOML has no null, so what is not known is not there."""
    chosen = tuning.chosen
    promised = chosen if isinstance(chosen, Prediction) else chosen.predicted
    figures: dict[str, Any] = {
        "goal": tuning.wanted.goal,
        "max_new_tokens": tuning.wanted.max_new_tokens,
        "temperature": tuning.wanted.temperature,
        "free_width": checks(tuning)["several_tokens_cost_one"]["up_to"],
        "in_force": tuning.configuration,
        "machine": _without_nothing(machine.describe()),
        "prompts": prompts,
    }
    vllm = deployed(tuning)
    if vllm.config is not None:
        figures["speculative_config"] = json.dumps(vllm.config)
    if vllm.additional is not None:
        figures["additional_config"] = json.dumps(vllm.additional)
    if promised is not None:
        figures["predicted"] = {
            "speedup": promised.speedup,
            "tokens_per_second": promised.per_user,
            "throughput": promised.throughput,
            "tokens_per_pass": promised.behaviour.tokens,
            "acceptance_rate": promised.behaviour.rate,
            "survival": list(promised.behaviour.survival),
            "round_seconds": promised.seconds._asdict(),
        }
    if isinstance(chosen, Contender):
        figures["run"] = _without_nothing(
            {
                "speedup": chosen.measured.speedup,
                "interval": _interval(chosen),
                "verdict": chosen.measured.verdict if chosen.setting.drafter != PLAIN else None,
                "tokens_per_second": chosen.measured.per_user,
                "throughput": chosen.measured.throughput,
                "tokens_per_pass": chosen.measured.tokens,
            }
        )
    return figures


def _legible(value: Any) -> Any:
    """The same with figures as exact as they can be."""
    if isinstance(value, dict):
        return {key: _legible(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_legible(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items() if value is not None
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "drafter": setting.drafter,
        "policy": setting.policy,
        "depth": None if setting.shape is None else setting.shape.depth,
        "nodes": None if setting.shape is None else setting.shape.nodes,
        "batch": setting.batch,
    }


def _drafter(run: Recorded) -> dict[str, Any]:
    asked = run.recording.asked
    behaviour = run.recording.behaviour(asked)
    return {
        "drafter": run.drafter,
        "asked": {"depth": asked.depth, "nodes": asked.nodes},
        "acceptance_rate": behaviour.rate,
        "survival": behaviour.survival,
        "conditional": speed.conditional(behaviour.survival),
        "by_rank": run.recording.ranks,
        "tokens_per_pass": behaviour.tokens,
        "draft_seconds": run.level.draft,
        "other_seconds": run.level.other,
        "passes_against_curve": run.level.verify,
    }


def _prediction(one: Prediction) -> dict[str, Any]:
    return _setting(one.setting) | {
        "tokens_per_second": one.per_user,
        "throughput": one.throughput,
        "speedup": one.speedup,
        "equal_chances": one.equal_chances,
        "naive": one.naive,
        "tokens_per_pass": one.behaviour.tokens,
        "needed": one.needed,
        "acceptance_rate": one.behaviour.rate,
        "survival": one.behaviour.survival,
        "seconds": one.seconds._asdict(),
    }


def _contender(one: Contender) -> dict[str, Any]:
    found = one.measured
    predicted = None if one.predicted is None else one.predicted.speedup
    return _setting(one.setting) | {
        "predicted": predicted,
        "speedup": found.speedup,
        "interval": _interval(one),
        "verdict": None if one.setting.drafter == PLAIN else found.verdict,
        "error": None if predicted is None else error(predicted, found.speedup),
        "expected_error": EXPECTED,
        "tokens_per_second": found.per_user,
        "throughput": found.throughput,
        "tokens_per_pass": found.tokens,
        "identical": found.identical,
        "compared": found.compared,
    }


def _interval(one: Contender) -> Sequence[float] | None:
    return None if one.measured.interval is None else [one.measured.interval.low, one.measured.interval.high]
