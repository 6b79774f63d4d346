"""Our proposers for vLLM, driven as its runner drives them: by texts in rows that come, go and change places."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outrider.drafters import DRAFTERS, Drafter
from outrider.drafters.suffix import Suffix
from outrider.errors import BadOption
from outrider.types import Budget
from outrider.vllm import CascadeProposer, SuffixProposer, TextProposer

CONTEXT = 64
PHRASE = [5, 9, 2, 7, 11, 3, 8, 4]


def config(k: int = 4, additional: Any = None, pipeline: int = 1) -> Any:
    """The parts of vLLM's configuration that a proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        model_config=SimpleNamespace(max_model_len=CONTEXT, tokenizer="none"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
        additional_config={} if additional is None else {"outrider": additional},
    )


class Runner:
    """vLLM's side: rows of texts, and a target that writes each request's own text whatever is drafted."""

    def __init__(self, proposer: TextProposer) -> None:
        self.proposer = proposer
        self.rows: list[tuple[list[int], list[int]]] = []  # text so far, what it goes on with
        self.drafts: list[list[int]] = []
        self.accepted = self.drafted = self.passes = 0

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A new request, whose prompt the next pass reads."""
        self.rows.append((list(prompt), list(answer)))
        self.drafts.append([])

    def step(self) -> None:
        """A pass over all rows, and the call that follows it."""
        sampled = []
        for (text, answer), draft in zip(self.rows, self.drafts, strict=True):
            kept = 0
            while kept < len(draft) and kept + 1 < len(answer) and draft[kept] == answer[kept]:
                kept += 1
            new = answer[: kept + 1]
            text += new
            del answer[: kept + 1]
            self.accepted, self.drafted = self.accepted + kept, self.drafted + len(draft)
            sampled.append(new)
        self.passes += 1
        self.drafts = self.call(sampled)

    def call(self, sampled: list[list[int]]) -> list[list[int]]:
        """Show the proposer the rows."""
        texts = np.zeros((len(self.rows) + 2, CONTEXT), dtype=np.int32)
        lengths = np.zeros(len(self.rows) + 2, dtype=np.int32)
        for row, (text, _) in enumerate(self.rows):
            texts[row, : len(text)] = text
            texts[row, len(text) :] = 1  # stale drafts lie there
            lengths[row] = len(text)
        return self.proposer.propose(sampled, lengths, texts, slot_mappings=None)

    def finish(self) -> None:
        """Rows without anything left to write go; the last one takes the place of the first."""
        left = [(row, draft) for row, draft in zip(self.rows, self.drafts, strict=True) if row[1]]
        left = left[-1:] + left[:-1]
        self.rows, self.drafts = [row for row, _ in left], [draft for _, draft in left]


def alone(spec: str, text: Sequence[int], budget: int) -> list[int]:
    """What the drafter itself would draft after this text."""
    drafter = Suffix.from_spec(spec, None)  # type: ignore[arg-type]
    state = drafter.begin(text, {})
    (draft,) = drafter.propose([state], [Budget(budget)], [], [])
    return draft.tree.tokens[1:].tolist()


def test_drafts_are_the_drafters_own_while_rows_come_go_and_move() -> None:
    """Three requests of different lengths, started one after another: every draft follows from the row's own text."""
    runner = Runner(SuffixProposer(config(additional={"drafter": "suffix:global=0"})))
    runner.add(PHRASE, PHRASE * 2)
    seen = 0
    for turn in range(14):
        if turn == 2:
            runner.add([6, *PHRASE[:4], 6], PHRASE[:4] * 4)
        if turn == 4:
            runner.add([13], [13, 14] * 6)
        if not runner.rows:
            break
        runner.step()
        for (text, _), draft in zip(runner.rows, runner.drafts, strict=True):
            assert draft == alone("global=0", text, 4)
            seen += len(draft)
        runner.finish()
    assert not runner.rows and seen > 20
    assert runner.accepted > 20


def test_prompts_in_parts_and_equal_texts() -> None:
    """Rows whose prompt is not read yet get nothing; two requests with the same text are served alike."""
    proposer = SuffixProposer(config())
    runner = Runner(proposer)
    for _ in range(2):
        runner.add(PHRASE * 2, PHRASE)
    assert runner.call([[], []]) == [[], []]
    runner.step()
    assert runner.drafts == [PHRASE[1:5]] * 2
    runner.rows.pop()
    runner.drafts.pop()
    runner.step()
    assert runner.drafts == [PHRASE[6:] + PHRASE[:2]]
    assert runner.call([[]]) == [[]]  # a pass that sampled nothing for it


def test_drafts_end_with_the_context() -> None:
    runner = Runner(SuffixProposer(config()))
    runner.add((PHRASE * 8)[: CONTEXT - 4], (PHRASE * 9)[CONTEXT - 4 : CONTEXT])
    runner.step()
    assert len(runner.drafts[0]) == 2  # and the bonus token fills it
    runner.step()
    assert runner.drafts == [[]]


@pytest.mark.parametrize(("pipeline", "kept"), [(1, False), (2, True)])
def test_finished_answers_are_learned(pipeline: int, kept: bool) -> None:
    """A request that stays away has ended, and the next one drafts from what it wrote; in a pipeline it may only be
    another request's turn."""
    proposer = SuffixProposer(config(pipeline=pipeline))
    runner = Runner(proposer)
    runner.add([20, 21], [*PHRASE, 30])
    while runner.rows:
        runner.step()
        runner.finish()
    runner.add([40, 41], [PHRASE[0], *PHRASE[1:]])
    runner.step()
    assert runner.drafts == ([[]] if kept else [PHRASE[1:3]])
    runner.step()
    assert runner.drafts[0] == ([] if kept else [*PHRASE[4:], 30][:4])


def test_a_request_that_comes_back_goes_on() -> None:
    """vLLM may put a request aside and read it anew; its output is not learned twice over."""
    proposer = SuffixProposer(config())
    runner = Runner(proposer)
    runner.add(PHRASE, PHRASE * 2)
    runner.step()
    aside, runner.rows, runner.drafts = runner.rows, [], []
    runner.add([13], [14, 15, 16])
    runner.step()
    runner.rows += aside
    runner.drafts.append([])
    runner.step()
    assert runner.drafts[1][:2] == PHRASE[2:4]


def test_goodput_learns_from_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `goodput` drafting stops where it does not pay: here drafts are long, always wrong, and each token of a
    pass costs as much as the first."""
    clock = [0.0]
    monkeypatch.setattr("outrider.vllm.perf_counter", lambda: clock[0])

    def drafted(policy: str) -> int:
        runner = Runner(SuffixProposer(config(8, {"policy": policy, "drafter": "suffix:global=0"})))
        rng = np.random.default_rng(0)
        runner.add([1, 2], [int(token) for _ in range(12) for token in (1, 2, *rng.integers(3, 60, 3))])
        for _ in range(50):
            clock[0] += 1.0 + sum(map(len, runner.drafts))
            runner.step()
        return runner.drafted

    assert drafted("goodput") < drafted("fixed:8") / 2


def test_cascades_draft_with_the_second_where_the_first_expects_too_little() -> None:
    runner = Runner(CascadeProposer(config()))
    runner.add(PHRASE, PHRASE * 3)
    while runner.rows:
        runner.step()
        runner.finish()
    assert runner.proposer.drafter.spec.startswith("cascade:suffix:")
    assert runner.accepted > 8


class NeedsStates(Suffix):
    """One that does not follow from text alone."""

    from_text = False


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SuffixProposer, {"drafter": "lookup"}, "choose the other class"),
        (SuffixProposer, {"drafter": "suffix:nothing=1"}, "no option"),
        (SuffixProposer, {"policy": "nothing"}, "no policy"),
        (SuffixProposer, {"policy": "confidence"}, "no probabilities"),
        (SuffixProposer, {"length": "3"}, "no option 'length'"),
        (SuffixProposer, {"drafter": 3}, "object of texts"),
        (SuffixProposer, "suffix", "object of texts"),
        (CascadeProposer, {"drafter": "cascade:suffix,recycle"}, "texts alone"),
        (CascadeProposer, {"drafter": "cascade:suffix,reference"}, "pass prediction"),
        (CascadeProposer, {"drafter": "cascade:suffix,model:demo"}, "draft_model"),
        (CascadeProposer, {"drafter": "suffix"}, "choose the other class"),
    ],
)
def test_what_cannot_work_is_refused(kind: type[TextProposer], options: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        kind(config(additional=options))


def test_drafters_are_asked_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, type[Drafter]] = DRAFTERS
    monkeypatch.setitem(registered, "suffix", NeedsStates)
    with pytest.raises(BadOption, match="texts alone"):
        SuffixProposer(config())


def test_it_loads_without_vllm_and_without_our_models() -> None:
    """vLLM imports this in its own environment, beside its own Transformers."""
    source = Path(__file__).parents[2] / "src"
    unwanted = {"vllm", "typer", "outrider.api", "outrider.engine", "outrider.loading"}
    code = f"import outrider.vllm, sys; print([name for name in sys.modules if name in {unwanted}])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
