"""Answers written by the target: requests go through the decode loop that is handed in, as many at a time as it holds.

Knows the loop only by what it calls of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import BadOption
from ..row import Request, Row
from ..sampling import Sampling
from ..text import Prompt, encode
from ..types import Round
from .answers import Answer, held_out

Task = TypeVar("Task")
Found = TypeVar("Found")

_INVENTED = 96  # tokens that an invented prompt has at most
_MARK = "OUTRIDER-USER-TURN"


class Loop(Protocol):
    """The part of the engine that generation uses."""

    def add(self, request: Request) -> Row:
        """Take a request in."""
        ...

    def step(self) -> list[tuple[Row, Round]]:
        """One round for every active row."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that is wanted; see `Answer`."""

    number: int
    prompt: tuple[int, ...]
    temperature: float
    seed: int
    category: str
    held_out: bool

    def answer(self, ids: Sequence[int]) -> Answer:
        """The job with its answer."""
        return Answer(
            number=self.number,
            prompt=self.prompt,
            answer=tuple(ids),
            temperature=self.temperature,
            category=self.category,
            held_out=self.held_out,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """How answers are drawn; see `Source`."""

    seed: int
    temperatures: tuple[float, ...]
    max_new_tokens: int
    held_out: float

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 <= t < 10 for t in self.temperatures):
            raise BadOption("Temperatures are numbers from 0 to 10, separated by commas.")
        if not 0 <= self.held_out < 1:
            raise BadOption(f"held_out is {self.held_out}: it has to be a share from 0 to 1.")

    def job(self, number: int, prompt: Sequence[int], category: str) -> Job:
        """The job of that number: everything about it follows from number and seed."""
        choice = random.Random(f"{self.seed} {number}")
        return Job(
            number,
            tuple(prompt),
            choice.choice(self.temperatures),
            choice.getrandbits(48),
            category,
            held_out(prompt, self.seed, self.held_out),
        )


def write_answers(
    loop: Loop,
    jobs: Iterable[Job],
    batch: int,
    max_new_tokens: int,
    done: Callable[[Answer, Row], None] = lambda answer, row: None,
) -> Iterator[Answer]:
    """Answer these jobs, `batch` at a time; a finished one makes room for the next at once.

    `done` is told of each answer with its row before it is given.
    """

    def request(job: Job) -> Request:
        return Request(job.prompt, Sampling(temperature=job.temperature), job.seed, max_new_tokens)

    def found(job: Job, row: Row) -> Answer:
        answer = job.answer(row.output)
        done(answer, row)
        return answer

    yield from _through(loop, jobs, batch, request, found)


def invent(
    loop: Loop, tokenizer: Any, numbers: Iterable[int], order: Order, batch: int
) -> Iterator[tuple[int, Prompt]]:
    """Prompts that the target writes itself: the chat template's user turn is left open for it (Magpie, 2406.08464).

    Args:
        loop, tokenizer: the target's.
        numbers: one prompt for each; its noise follows from number and seed.
        order: for its seed.
        batch: how many at a time.

    Yields:
        number and prompt; those that come out empty are left out.

    Raises:
        BadOption: the tokenizer has no chat template.
    """
    before, ends = open_turn(tokenizer)

    def request(number: int) -> Request:
        seed = random.Random(f"{order.seed} {number} prompt").getrandbits(48)
        return Request(tuple(before), Sampling(temperature=1.0), seed, _INVENTED)

    def prompt(number: int, row: Row) -> tuple[int, Prompt]:
        ids = row.output
        cut = next((place for place, token in enumerate(ids) if token in ends), len(ids))
        text = tokenizer.decode(ids[:cut], skip_special_tokens=True).strip()
        return number, [{"role": "user", "content": text}] if text else ""

    for number, found in _through(loop, numbers, batch, request, prompt):
        if found:
            yield number, found


def open_turn(tokenizer: Any) -> tuple[list[int], set[int]]:
    """The ids of a chat before the user's first word, and the id that ends the user's turn.

    Raises:
        BadOption: the tokenizer has no chat template, or one that rewrites what users say.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise BadOption("The target's tokenizer has no chat template, so it cannot invent prompts: give --prompts.")
    chat = [{"role": "user", "content": _MARK}]
    before, mark, after = tokenizer.apply_chat_template(chat, tokenize=False).partition(_MARK)
    if not mark or not before:
        raise BadOption("The chat template does not show where the user's words go: give --prompts.")
    ends = tokenizer(after, add_special_tokens=False)["input_ids"][:1]
    return encode(tokenizer, tokenizer(before, add_special_tokens=False)["input_ids"]), set(ends)


def _through(
    loop: Loop,
    tasks: Iterable[Task],
    batch: int,
    request: Callable[[Task], Request],
    found: Callable[[Task, Row], Found],
) -> Iterator[Found]:
    """Send tasks through the loop, and give what has become of them as they end."""
    waiting = iter(tasks)
    running: dict[int, tuple[Task, Row]] = {}
    more = True
    while more or running:
        while more and len(running) < batch:
            task = next(waiting, None)
            if task is None:
                more = False
            else:
                row = loop.add(request(task))
                running[id(row)] = (task, row)
        for row, _ in loop.step() if running else ():
            if row.finish is not None:
                task, _ = running.pop(id(row))
                yield found(task, row)
