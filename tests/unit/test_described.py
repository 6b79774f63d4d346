"""What a drafter's card says of its data."""

from __future__ import annotations

from outrider.checkpoints import TargetId
from outrider.commands.keeper import described
from outrider.train.answers import Source


def test_what_was_answered_alike_is_said_once() -> None:
    target = TargetId(name="demo", hash="0" * 16, vocabulary=10, width=4, depth=2)

    def source(prompts: str, *temperatures: float) -> Source:
        about = {"seed": 0, "max_new_tokens": 8, "held_out": 0.0, "prompts": prompts}
        return Source(target=target, template=None, temperatures=temperatures, **about)

    found = described([source("A", 0.0, 0.7), source("B", 1.0), source("C", 0.0, 0.7), source("A", 0.0, 0.7)])
    assert found == ["A; C: answered by demo at temperatures 0, 0.7", "B: answered by demo at temperatures 1"]
