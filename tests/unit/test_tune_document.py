"""What is said of a tuning that is made up: the choice, the two checks, the document, the configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tuned import EXACT, chain, flat_to, of, passes, search

from outrider.config import read, write
from outrider.measure.results import Interval
from outrider.tune.document import best_of, checks, configured, document, off
from outrider.tune.search import Setting
from outrider.tune.tuning import Contender, Tuning, Wanted
from outrider.tune.validation import Measured

PROMPTS = {"spec": "builtin", "count": 3, "sha256": "0" * 64}
GIVEN = {"target": "./model", "quantize": "int8", "fast": False}
IN_FORCE = {"target": "./model", "dtype": "float32", "build": "lean", "device": "cpu"}


def measured(case: int, per_user: float, batch: int = 1, speedup: float = 1.0) -> Measured:
    """With an interval of a tenth around."""
    around = Interval(low=0.9 * speedup, high=1.1 * speedup)
    return Measured(case, 2.0, per_user, batch * per_user, speedup, None if case == 0 else around, 3, 3)


@pytest.fixture
def tuning() -> Tuning:
    """Two drafters, of which one is worth nothing; nothing has been run."""
    drafters = {"good": (chain([3, 0] * 50), 0.1), "bad": (chain([0] * 20), 0.1)}
    curve = passes(flat_to(4))
    recorded, prices, predictions = search(drafters, curve)
    wanted = Wanted(("good", "bad"), (1, 2, 3, 4, 5, 6, 7, 8), None, (1,))
    return Tuning(
        wanted, IN_FORCE, curve.costs, prices, EXACT, tuple(recorded), tuple(predictions), (), 3, interrupted=False
    )


def run(tuning: Tuning, *speeds: tuple[str, int | None, float]) -> Tuning:
    """The same with some of it run: drafter, length (None is goodput, or plain), tokens per second."""
    contenders = []
    for case, (drafter, k, speed) in enumerate(speeds):
        predicted = (
            None
            if k is None and drafter != "none"
            else of(tuning.predictions, drafter, k)
            if k
            else tuning.predictions[0]
        )
        setting = Setting(drafter, None, 1) if predicted is None else predicted.setting
        contenders.append(Contender(setting, predicted, measured(case, speed, speedup=speed)))
    return replace(tuning, contenders=tuple(contenders))


def test_the_checks(tuning: Tuning) -> None:
    """Passes are free to four tokens; three of the good drafter's tokens pay, and none of the other's."""
    answers = checks(tuning)
    one = answers["several_tokens_cost_one"]
    assert (one["answer"], one["up_to"]) == (True, 5), "five tokens cost 1.25, which still counts as free"
    assert one["ratios"][8] == pytest.approx(2.0)
    good, bad = answers["accepted_enough"]["drafters"]
    assert (good["shape"], good["enough"], good["needed"]) == ("k=3", True, pytest.approx(1.3))
    assert (bad["shape"], bad["enough"], bad["accepted"]) == ("k=1", False, 0)
    assert answers["accepted_enough"]["answer"] is True
    assert best_of(tuning, "bad").setting.drafter == "bad"


def test_without_a_run_the_predictions_decide(tuning: Tuning) -> None:
    assert tuning.chosen is of(tuning.predictions, "good", 3) is tuning.promised
    assert off(tuning) == []
    config = configured(tuning, GIVEN, PROMPTS)
    assert (config.drafter, config.policy, config.verifier, config.batch) == ("good", "fixed:3", "match", 1)
    assert config.given()["quantize"] == "int8" and config.given()["fast"] is False
    assert config.measured is not None and "run" not in config.measured


def test_what_was_run_decides(tuning: Tuning) -> None:
    """Even against the predictions, and for a policy that nobody predicted."""
    done = run(tuning, ("none", None, 1.0), ("good", 3, 1.5), ("good", 2, 1.6), ("good", None, 1.55))
    assert done.chosen.setting.policy == "fixed:2"
    promised = of(tuning.predictions, "good", 3).speedup
    assert off(done) == pytest.approx([promised / 1.5 - 1, of(tuning.predictions, "good", 2).speedup / 1.6 - 1])
    assert run(tuning, ("none", None, 1.0), ("good", 3, 1.5), ("good", None, 1.55)).chosen.setting.policy == "goodput"


def test_plain_decoding_can_be_chosen(tuning: Tuning) -> None:
    """Then the file has no policy and no rule, which would change nothing, and vLLM needs nothing."""
    done = run(tuning, ("none", None, 1.0), ("good", 3, 0.9))
    config = configured(done, GIVEN, PROMPTS)
    assert (config.drafter, config.policy, config.verifier) == ("none", None, None)
    assert document(done, PROMPTS)["vllm"]["speculative_config"] is None


def test_the_document_is_json_and_the_file_is_toml(tuning: Tuning, tmp_path: Path) -> None:
    done = run(tuning, ("none", None, 1.0), ("good", 3, 1.5), ("good", None, 1.4))
    found = json.loads(json.dumps(document(done, PROMPTS)))
    assert len(found["predictions"]) == 1 + 2 * 8
    assert found["chosen"] == {"drafter": "good", "policy": "fixed:3", "depth": 3, "nodes": 3, "batch": 1}
    plain, fixed, adaptive = found["contenders"]
    assert (plain["error"], plain["verdict"], adaptive["predicted"]) == (0.0, None, None)
    assert fixed["interval"] == pytest.approx([1.35, 1.65])
    config = configured(done, GIVEN, PROMPTS)
    write(config, tmp_path / "outrider.toml", "x")
    again = read(tmp_path / "outrider.toml")
    assert again == config
    assert again.measured is not None
    assert again.measured["run"]["speedup"] == 1.5
    assert again.measured["predicted"]["survival"] == [0.5, 0.5, 0.5]
    assert again.measured["machine"]["cores"] >= 1
