"""Thousands of short requests through one object, many of them abandoned: nothing leaks, and nothing remembers."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import families
import psutil
import pytest

import outrider
from outrider import Sampling

WARM = 200  # requests after which memory may not grow any more
GROWTH = 1.05
SPEC = "suffix:global=512"  # full before the warm-up is over


class Client:
    """Asks in every way there is, and leaves when it likes.

    Args:
        llm: what is asked.
        plain: decodes plainly, and has never heard of any other request.
        prompts: of token ids.
        new: tokens asked for at most.
    """

    def __init__(self, llm: outrider.Outrider, plain: outrider.Outrider, prompts: list[list[int]], new: int) -> None:
        self._llm, self._new, self._chance = llm, new, random.Random(1)
        self._samplings = [Sampling(seed=0), Sampling(temperature=0.9, top_p=0.95, seed=3)]
        self._prompts = prompts
        self._expected = {
            (place, how): plain.generate(prompt, sampling=sampling, max_new_tokens=new).token_ids
            for place, prompt in enumerate(prompts)
            for how, sampling in enumerate(self._samplings)
        }

    def ask(self, requests: int) -> None:
        """So many requests, one after another or a few together; every token that arrives is the right one."""
        left = requests
        while left > 0:
            how, count = self._chance.randrange(2), min(left, self._chance.choice([1, 1, 1, 3]))
            chosen = self._chance.sample(range(len(self._prompts)), count)
            left -= count
            if count == 1 and self._chance.random() < 0.5:
                self._stream(chosen[0], how)
                continue
            outputs = self._llm.generate(
                [self._prompts[place] for place in chosen], sampling=self._samplings[how], max_new_tokens=self._new
            )
            for place, output in zip(chosen, outputs, strict=True):
                assert output.token_ids == self._expected[place, how]

    def _stream(self, place: int, how: int) -> None:
        """Listen for some rounds, then say so, or simply go."""
        prompt, sampling = self._prompts[place], self._samplings[how]
        stream: Iterator[Any] = self._llm.stream(prompt, sampling=sampling, max_new_tokens=self._new)
        heard: list[int] = []
        with suppress(StopIteration):
            for _ in range(self._chance.randrange(1, 6)):
                heard += next(stream).round.tokens
        if self._chance.random() < 0.5:
            stream.stop()  # type: ignore[attr-defined]
        assert heard == self._expected[place, how][: len(heard)]


def memory() -> tuple[int, int]:
    """Bytes of the process, and objects."""
    gc.collect()
    return psutil.Process().memory_info().rss, len(gc.get_objects())


def soak(llm: outrider.Outrider, plain: outrider.Outrider, prompts: list[list[int]], new: int, requests: int) -> None:
    """Warm up, remember, go on, compare."""
    client = Client(llm, plain, prompts, new)
    client.ask(WARM)
    before = memory()
    client.ask(requests - WARM)
    after = memory()
    assert after[0] <= GROWTH * before[0], "bytes"
    assert after[1] <= GROWTH * before[1], "objects"


def test_two_thousand_requests() -> None:
    """On a tiny model, with the default policy."""
    model = families.make("llama")
    options: dict[str, Any] = {"prefix_memory": 1 << 18}
    llm = outrider.load(model, SPEC, **options)
    soak(llm, outrider.load(model, "none", prefix_memory=0), families.prompts(*range(5, 45, 4)), 8, 2000)


@pytest.mark.slow
def test_two_thousand_requests_on_the_demo_model(demo_model: Any, demo_tokenizer: Any) -> None:
    """Where weights, caches and kernels are of a real size."""
    llm = outrider.load(demo_model, SPEC, tokenizer=demo_tokenizer, prefix_memory=16 << 20)
    texts = [f"{number} bottles of beer on the wall, {number} bottles of" for number in range(3, 13)]
    prompts = [demo_tokenizer(text)["input_ids"] for text in texts]
    soak(llm, llm.using("none"), prompts, 8, 2000)
