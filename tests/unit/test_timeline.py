"""The timeline: spans of a round lie inside it and inside the answer, in order; what an endpoint's stream becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured import SMALL, results_of

from outrider.measure import timeline
from outrider.measure.results import PLAIN, Case, Sample


def spans(samples: list[Sample], cases: tuple[Case, ...]) -> dict[int, list[dict[str, Any]]]:
    """Complete events by thread."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in timeline.events(cases, samples):
        if event["ph"] == "X":
            found.setdefault(event["tid"], []).append(event)
    return found


def test_rounds_lie_in_order_inside_the_answer() -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SMALL), (Case(drafter="d", k=3, batch=2), SMALL)], prompts=4)
    for thread, sample in enumerate(samples, 1):
        every = spans(samples, results.cases)[thread]
        answer, prefill, *rest = every
        assert (answer["name"], answer["pid"]) == ("answer", sample.case)
        assert answer["dur"] == pytest.approx(sample.seconds * 1e6, abs=1)
        rounds = [event for event in rest if event["name"].startswith("round")]
        assert len(rounds) == len(sample.rounds)
        ends = [prefill["ts"] + prefill["dur"]]
        for event, round_ in zip(rounds, sample.rounds, strict=True):
            assert event["ts"] == pytest.approx(ends[-1], abs=1)
            ends.append(event["ts"] + event["dur"])
            assert ends[-1] == pytest.approx(round_.at * 1e6, abs=1)
            assert event["args"]["accepted"] == round_.accepted and event["args"]["drafted"] == round_.drafted
            inside = [
                e for e in rest if e["name"] in {"draft", "verify", "verdict"} and event["ts"] - 1 <= e["ts"] < ends[-1]
            ]
            assert {e["name"] for e in inside} == {"verify", "verdict"} | ({"draft"} if round_.draft_seconds else set())
            for part in inside:
                assert part["ts"] + part["dur"] <= ends[-1] + 1
                assert part["dur"] == pytest.approx(getattr(round_, f"{part['name']}_seconds") * 1e6, abs=1)
        assert ends[-1] <= answer["dur"] + 1


def test_answers_lie_where_they_lay() -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SMALL)], prompts=3)
    told = [sample.model_copy(update={"started": 1e9 + 10 * n}) for n, sample in enumerate(samples)]
    starts = [events[0]["ts"] for events in spans(told, results.cases).values()]
    assert starts == [0, 10e6, 20e6]
    assert {events[0]["ts"] for events in spans(samples, results.cases).values()} == {0}


def test_a_stream_without_rounds_has_its_events() -> None:
    _, samples = results_of([(Case(drafter=PLAIN), SMALL)], prompts=1)
    bare = samples[0].model_copy(update={"rounds": (), "arrivals": ((0.5, 1), (0.75, 3)), "seconds": 0.8})
    _, first, second = spans([bare], (Case(drafter="remote", system="endpoint"),))[1]
    assert (first["name"], first["ts"], first["dur"]) == ("first token", 0, 500000)
    assert (second["ts"], second["dur"], second["args"]) == (500000, 250000, {"tokens": 3})


def test_the_file_is_json_without_a_word_of_the_user(tmp_path: Path) -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SMALL), (Case(drafter="d", k=2), SMALL)], prompts=2)
    secret = [sample.model_copy(update={"text": "my secret"}) for sample in samples]
    path = timeline.write(results.cases, secret, tmp_path / "timeline.json")
    document = json.loads(path.read_text())
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert names == {"none", "d, k=2"}
    written = [
        event["args"]["written"] for event in document["traceEvents"] if event["ph"] == "C" and event["tid"] == 1
    ]
    assert written[-1] == 48 and written == sorted(written)
    assert "my secret" not in path.read_text()


def test_nothing_measured_is_an_empty_timeline(tmp_path: Path) -> None:
    assert json.loads(timeline.write((), (), tmp_path / "t.json").read_text())["traceEvents"] == []
