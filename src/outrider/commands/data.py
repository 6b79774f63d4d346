"""`outrider data`: let the target write answers to train on, as a folder that can be continued."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from ..api import Outrider
from ..checkpoints import template_hash
from ..cluster import Cluster, check_cluster, parts_of
from ..drafters.trained import identify
from ..engine import Engine
from ..errors import BadOption
from ..features import default_taps, depth_of, width_of
from ..measure.prompts import read
from ..row import Row
from ..text import encode
from ..train.answers import Answer, Folder, Source
from ..train.generation import Job, Order, invent, write_answers
from ..train.stored import LIMIT, Shards, Store, check_room
from ..train.watching import Watching
from .features import about
from .settings import Settings, decoder_only
from .showing import progress_bar, versions

_INVENTED = 512  # tokens of an invented prompt in its template, for what states may take
_AT_ONCE = 64  # invented prompts that are made before they are answered
_SHARES = 4  # batches that a worker of a cluster takes at a time

Task = Job | int
"""An answer that is wanted, or the number of one whose prompt is to be invented."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; see the command's options."""

    out: Path
    prompts: tuple[str, ...]
    invented: int
    samples: int
    limit: int | None
    max_new_tokens: int
    temperatures: str
    held_out: float
    seed: int
    batch: int
    features: str = ""
    features_limit: float | None = None
    ray: str | None = None

    def order(self) -> Order:
        """How answers are drawn.

        Raises:
            BadOption: the temperatures are no numbers.
        """
        try:
            temperatures = tuple(float(part) for part in self.temperatures.split(","))
        except ValueError as error:
            raise BadOption(f"--temperatures {self.temperatures}: give numbers like 0.7,0.8,1.0.") from error
        return Order(self.seed, temperatures, self.max_new_tokens, self.held_out)

    def layers(self, depth: int) -> tuple[int, ...]:
        """The layers whose states are kept.

        Raises:
            BadOption: they are no numbers.
        """
        if self.features == "auto":
            return default_taps(depth)
        try:
            return tuple(int(part) for part in self.features.split(","))
        except ValueError as error:
            raise BadOption(f"--features {self.features}: write auto, or layers like 2,15,27.") from error


def run(settings: Settings, asked: Wanted, *, show: bool) -> dict[str, Any]:
    """Write what is not yet there; the document is what `--json` prints. Ctrl-C keeps what is done."""
    _check(settings, asked)
    order = asked.order()
    texts = [found for spec in asked.prompts for found in read(spec, limit=asked.limit, offline=settings.offline)]
    llm = settings.load()
    decoder_only(llm, "data")
    encoded = [(tuple(encode(llm.tokenizer, text.fitted(llm.tokenizer))), text.category) for text in texts]
    room = llm.target.context - asked.max_new_tokens
    fitting = [(ids, category) for ids, category in encoded if len(ids) <= room]
    if texts and not fitting:
        raise BadOption(
            f"No prompt leaves room for {asked.max_new_tokens} tokens in a context of {llm.target.context}: shorten "
            "--max-new-tokens or the prompts."
        )
    wanted = about(llm.target, asked.layers(depth_of(llm.target)), "bfloat16") if asked.features else None
    folder = Folder(asked.out, _source(settings, asked, llm, order, [ids for ids, _ in fitting]))
    total = asked.invented or len(fitting) * asked.samples
    left = [number for number in range(total) if number not in folder.done]
    keeper = None
    loop = llm.engine()
    if wanted is not None:
        longest = max((len(ids) for ids, _ in fitting), default=_INVENTED) + asked.max_new_tokens
        needed = len(left) * longest * wanted.token_bytes(width_of(llm.target))
        check_room(asked.out, needed, LIMIT if asked.features_limit is None else asked.features_limit)
        keeper = Keeper(Store(asked.out, wanted), loop)
    tasks: list[Task] = [
        number if asked.invented else order.job(number, *fitting[number % len(fitting)]) for number in left
    ]
    if asked.ray is None:
        answers = _written(llm, loop, tasks, order, asked.batch, *(() if keeper is None else (keeper,)))
    else:
        answers = _written_by_cluster(asked.ray, settings, llm, tasks, order, asked.batch)
    started, written, tokens = perf_counter(), 0, 0
    try:
        for answer in _shown(answers, len(left), show):
            folder.add([answer])
            written, tokens = written + 1, tokens + len(answer.answer)
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted: what is done is kept, and the same command goes on from there.")
    finally:
        if keeper is not None:
            keeper.shards.flush()
    seconds = perf_counter() - started
    if show:
        print(f"{asked.out}: {len(folder.done)} of {total} answers, {tokens} tokens in {seconds:.0f} s")
    return {
        "out": str(asked.out),
        "answers": len(folder.done),
        "of": total,
        "too_long": len(encoded) - len(fitting),
        "written_now": written,
        "tokens_now": tokens,
        "seconds": seconds,
        **versions(),
    }


def _check(settings: Settings, asked: Wanted) -> None:
    """Refuse what cannot work or would change nothing.

    Raises:
        BadOption: see there.
    """
    if asked.features and settings.quantize:
        raise BadOption(
            "--features keeps the states of the target as it is loaded, and training loads it whole: leave out "
            "--quantize or --features (training can compute them: outrider train .. --features stored)."
        )
    if asked.features and asked.ray is not None:
        raise BadOption(
            "--features keeps states on this machine, and with --ray others make them: leave out --ray or --features "
            "(training can compute them: outrider train .. --features stored)."
        )
    if asked.features_limit is not None and not asked.features:
        raise BadOption("--features-limit is about kept states: say --features auto, or leave it out.")
    if bool(asked.prompts) == bool(asked.invented):
        raise BadOption("Give either --prompts or --self, so that there is something to answer.")
    if asked.ray is not None:
        check_cluster(asked.ray)


class Keeper:
    """Keeps the states of a loop's answers, for training; of those only that may be trained on.

    Args:
        store: where.
        loop: from now on it keeps them on its way.
    """

    def __init__(self, store: Store, loop: Engine) -> None:
        self.shards = Shards(store)
        loop.drafter = Watching(loop.drafter, store.about.layers)

    def __call__(self, answer: Answer, row: Row) -> None:
        """Take the states of an answer that is done."""
        if answer.answer and not answer.held_out:
            self.shards.add(answer.ids, row.state.states())


def _source(settings: Settings, asked: Wanted, llm: Outrider, order: Order, prompts: list[tuple[int, ...]]) -> Source:
    if asked.invented:
        whence = "invented by the target"
    else:
        digest = hashlib.sha256(repr(prompts).encode()).hexdigest()[:16]
        whence = f"{len(prompts)} of {', '.join(Path(spec).name for spec in asked.prompts)} (hash {digest})"
    return Source(
        target=identify(llm.target, settings.target),
        template=template_hash(llm.tokenizer),
        seed=order.seed,
        temperatures=order.temperatures,
        max_new_tokens=order.max_new_tokens,
        held_out=order.held_out,
        prompts=whence,
    )


def _written(
    llm: Outrider, loop: Engine, tasks: Sequence[Task], order: Order, batch: int, *done: Keeper
) -> Iterator[Answer]:
    """The answers, one by one as they are done; where a task is a number, the target invents its prompt first."""
    jobs = [task for task in tasks if isinstance(task, Job)]
    found = jobs or _invented(llm, order, [task for task in tasks if isinstance(task, int)], batch)
    yield from write_answers(loop, found, batch, order.max_new_tokens, *done)


def _written_by_cluster(
    address: str, settings: Settings, llm: Outrider, tasks: Sequence[Task], order: Order, batch: int
) -> Iterator[Answer]:
    """The same by the workers of a cluster, each with the whole model; the answers are those of one process."""

    def write(held: Outrider, part: Sequence[Task]) -> list[Answer]:
        return list(_written(held, held.engine(), part, order, batch))

    with Cluster(address, settings.load) as cluster:
        here, name = identify(llm.target, settings.target), settings.target
        for there in cluster.each(lambda held: identify(held.target, name)):
            here.check(there, Path(name))
        for part in cluster.spread(parts_of(tasks, cluster.workers, _SHARES * batch), write):
            yield from part


def _invented(llm: Outrider, order: Order, numbers: list[int], batch: int) -> Iterator[Job]:
    """Jobs whose prompts the target writes, some at a time, in a loop of their own."""
    for first in range(0, len(numbers), _AT_ONCE):
        part = numbers[first : first + _AT_ONCE]
        for number, prompt in invent(llm.engine(), llm.tokenizer, part, order, batch):
            yield order.job(number, encode(llm.tokenizer, prompt), "invented")


def _shown(answers: Iterable[Answer], total: int, show: bool) -> Iterator[Answer]:
    if not show:
        yield from answers
        return
    with progress_bar("answering", total) as advance:
        for answer in answers:
            yield answer
            advance()
