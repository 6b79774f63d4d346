"""Two runs against each other: ratios by hand, what a gate stops, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from measured import MANIFEST, SMALL, everything, results_of

from outrider.errors import BadOption
from outrider.measure.comparing import compare
from outrider.measure.reading import Run, read
from outrider.measure.results import PLAIN, SCHEMA, Case, Results, Sample

CASES = (Case(drafter=PLAIN), Case(drafter="d", k=2), Case(drafter="d", k=4))


def run(
    change: Callable[[Sample], Sample] = lambda sample: sample, cases: tuple[Case, ...] = CASES, repeats: int = 1
) -> Run:
    """A run in memory whose samples were changed."""
    results, samples = results_of([(case, SMALL) for case in cases], prompts=6, repeats=repeats)
    return Run(Path("somewhere"), results, tuple(change(sample) for sample in samples))


def slower(
    factor: float, case: int, prompt: str | None = None, repeat: int | None = None
) -> Callable[[Sample], Sample]:
    """Samples of a case take so much longer."""

    def change(sample: Sample) -> Sample:
        hit = sample.case == case and prompt in (None, sample.prompt) and repeat in (None, sample.repeat)
        return sample.model_copy(update={"seconds": sample.seconds * (factor if hit else 1)})

    return change


def test_a_run_equals_itself() -> None:
    found = compare(run(), run())
    assert [one.name for one in found.cases] == ["none", "d, k=2", "d, k=4"]
    for one in found.cases:
        assert (one.ratio, one.verdict, one.prompts) == (pytest.approx(1.0), "indistinguishable", 6)
        assert one.compared == one.identical == 6
    assert found.missing == found.added == () and found.differences == ()
    assert found.falling_below(0.999) == []


def test_ratios_are_geometric_means_over_prompts() -> None:
    found = compare(run(), run(slower(2.0, 1, "p00")))
    assert found.cases[1].ratio == pytest.approx(2 ** (-1 / 6))
    assert found.cases[1].verdict == "indistinguishable", "one prompt of six is chance"
    every = compare(run(), run(slower(1.25, 1)))
    assert (every.cases[1].ratio, every.cases[1].verdict) == (pytest.approx(0.8), "slower")
    assert compare(run(slower(1.25, 1)), run()).cases[1].verdict == "faster"


def test_of_repeats_the_median_counts() -> None:
    found = compare(run(repeats=3), run(slower(50.0, 1, repeat=1), repeats=3))
    assert found.cases[1].ratio == pytest.approx(1.0)
    assert found.cases[1].prompts == 6


def test_longer_answers_are_not_slower_ones() -> None:
    """Twice the tokens in twice the time is the same speed."""

    def twice(sample: Sample) -> Sample:
        return sample.model_copy(update={"seconds": 2 * sample.seconds, "ids": sample.ids * 2})

    found = compare(run(), run(twice))
    assert found.cases[1].ratio == pytest.approx(1.0)
    assert (found.cases[1].compared, found.cases[1].identical) == (6, 0)


def test_a_slower_machine_leaves_speedups_alone() -> None:
    def slow(sample: Sample) -> Sample:
        return sample.model_copy(update={"seconds": 3 * sample.seconds})

    assert compare(run(), run(slow)).cases[1].ratio == pytest.approx(1 / 3)
    found = compare(run(), run(slow), "speedup")
    assert [(one.name, one.ratio) for one in found.cases] == [
        ("d, k=2", pytest.approx(1.0)), ("d, k=4", pytest.approx(1.0)),
    ]  # fmt: skip


def test_a_gate_stops_what_fell_and_what_is_gone() -> None:
    found = compare(run(), run(slower(1.2, 1)))
    assert found.falling_below(0.95) == ["d, k=2"] and found.falling_below(0.8) == []
    gone = compare(run(), run(cases=(*CASES[:2], Case(drafter="new", k=1))))
    assert (gone.missing, gone.added) == (("d, k=4",), ("new, k=1",))
    assert gone.falling_below(0.1) == ["d, k=4"]


def test_a_case_without_a_prompt_in_common_is_missing() -> None:
    def renamed(sample: Sample) -> Sample:
        return sample.model_copy(update={"prompt": f"other {sample.prompt}"}) if sample.case == 2 else sample

    found = compare(run(), run(renamed))
    assert found.missing == ("d, k=4",) and len(found.cases) == 2


def test_prompts_of_a_batch_are_drawn_together() -> None:
    """All prompts in one batch: one draw, so no interval."""

    def together(sample: Sample) -> Sample:
        return sample.model_copy(
            update={"group": 0, "seconds": sample.seconds * 0.5 if sample.case else sample.seconds}
        )

    found = compare(run(lambda sample: sample.model_copy(update={"group": 0})), run(together))
    assert found.cases[1].interval is None and found.cases[1].verdict == "indistinguishable"


def test_what_else_changed_is_told() -> None:
    other = run()
    manifest = {
        **MANIFEST,
        "started": "later",
        "argv": [],
        "machine": {**MANIFEST["machine"], "cpu": "another"},
        "new": 1,
    }
    changed = Run(other.folder, other.results.model_copy(update={"manifest": manifest}), other.samples)
    found = compare(run(), changed).differences
    assert [(one.name, one.before, one.after) for one in found] == [
        ("machine.cpu", "AMD EPYC 7R13", "another"), ("new", "nothing", "1"),
    ]  # fmt: skip


def test_what_cannot_be_compared() -> None:
    bare = run()
    with pytest.raises(BadOption, match="no samples"):
        compare(Run(bare.folder, bare.results, ()), run())
    with pytest.raises(BadOption, match="no case in common"):
        compare(run(), run(cases=(Case(drafter="other"),)))
    with pytest.raises(BadOption, match="--of speed"):
        compare(run(), run(cases=CASES[1:]), "speedup")


def save(folder: Path, results: Results, samples: list[Sample]) -> Path:
    """A folder as `outrider bench` writes it."""
    folder.mkdir()
    (folder / "results.json").write_text(results.model_dump_json())
    (folder / "samples.jsonl").write_text("".join(sample.model_dump_json() + "\n" for sample in samples))
    return folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    results, samples = everything(2)
    folder = save(tmp_path / "run", results, samples)
    for place in (folder, folder / "results.json"):
        found = read(place)
        assert (found.folder, found.results, found.samples) == (folder, results, tuple(samples))
    (folder / "samples.jsonl").unlink()
    assert read(folder).samples == ()


NEWER = f'{{"schema_version": {SCHEMA + 1}, "manifest": {{}}, "cases": [], "summaries": []}}'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("results.json", "no json", "no result of outrider bench"),
        ("results.json", "{}", "manifest"),
        ("results.json", '{"manifest": {}, "cases": [], "summaries": [], "more": 1}', "more"),
        ("results.json", NEWER, "schema version"),
        ("samples.jsonl", "\n{}\n", "line 2"),
        ("results.json", '{"manifest": {}, "cases": [], "summaries": []}', "does not list"),
    ],
)  # fmt: skip
def test_files_of_something_else_are_one_sentence(tmp_path: Path, name: str, text: str, says: str) -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SMALL)], prompts=1)
    folder = save(tmp_path / "run", results, samples)
    (folder / name).write_text(text)
    with pytest.raises(BadOption, match=says) as raised:
        read(folder)
    assert "\n" not in str(raised.value)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"holds no results\.json"):
        read(tmp_path / "nowhere")


def test_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, samples = results_of([(Case(drafter=PLAIN), SMALL)], prompts=1)
    folder = save(tmp_path / "run", results, samples)
    monkeypatch.setattr("outrider.measure.reading._SAMPLES_BYTES", 10)
    with pytest.raises(BadOption, match="smaller runs"):
        read(folder)
    monkeypatch.setattr("outrider.measure.reading._RESULTS_BYTES", 10)
    with pytest.raises(BadOption, match="MiB"):
        read(folder)
