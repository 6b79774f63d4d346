"""The training loop: steps, checkpoints, measurements. Any method, one process or several (Accelerate).

Everything random follows from seed and step, so a run that was killed and taken up again equals one that was not. Real
acceptance, measured by the decode loop that is handed in, picks the weights that are kept. Knows no methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..drafters import Drafter
from ..errors import BadOption, TrainingStopped
from ..stats import Stats
from ..target import Target
from .answers import Answer
from .corpus import Features, collate, order, pieces
from .processes import Shared, gathered
from .recipe import Recipe
from .saving import Progress, restore, save, state_of

Measure = Callable[[Target, Drafter], Stats]
"""Real acceptance of a drafter for its target on held-out prompts."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to train.

    Attributes:
        epochs: times that each answer is seen; the last one may be a part.
        steps: optimiser steps; None follows from `epochs`.
        batch_tokens: of a batch, padding included.
        accumulate: batches whose gradients make one step.
        lr: at its highest: it rises over the first `warmup` of the steps and falls along a cosine to a twentieth.
        warmup: share of the steps.
        clip: greatest norm of the gradient.
        weight_decay: of AdamW.
        bf16: multiply in bfloat16 (autocast); weights stay float32.
        seed: of order, first weights and noise.
        evaluate_every, checkpoint_every: steps.
        tracker: one of Accelerate's, by name, to which loss, rate and acceptance go; empty for none.
    """

    epochs: float = 2.0
    steps: int | None = None
    batch_tokens: int = 1024
    accumulate: int = 1
    lr: float = 5e-4
    warmup: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    bf16: bool = False
    seed: int = 0
    evaluate_every: int = 200
    checkpoint_every: int = 100
    tracker: str = ""

    def __post_init__(self) -> None:
        counts = (self.batch_tokens, self.accumulate, self.evaluate_every, self.checkpoint_every, self.steps or 1)
        if min(counts) < 1:
            raise BadOption("Steps, batch tokens, accumulation and intervals have to be 1 or more.")
        if not (self.lr > 0 and self.clip > 0 and self.epochs > 0 and 0 <= self.warmup < 1):
            raise BadOption("The learning rate, clip and epochs have to be above 0, and warmup a share below 1.")

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step."""
        rising = max(1, round(self.warmup * total))
        if step < rising:
            return self.lr * (step + 1) / rising
        share = (step - rising) / max(1, total - rising)
        return self.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True, slots=True)
class News:
    """What happened in a step, for whoever shows it.

    Attributes:
        step, total: steps done, and to do altogether.
        loss: of this step.
        tokens: answer tokens of this step.
        acceptance_length: the latest one measured.
        measured: it is new.
    """

    step: int
    total: int
    loss: float
    tokens: int
    acceptance_length: float | None
    measured: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run would take.

    Attributes:
        parameters: that are trained.
        answers, steps: how many.
        tokens: answer tokens of all steps.
        memory: bytes of weights, gradients and optimiser, the target and activations apart.
        seconds: of all steps, by the first ones; measuring acceptance and loading apart.
    """

    parameters: int
    answers: int
    steps: int
    tokens: int
    memory: int
    seconds: float


class Trainer:
    """A run.

    Args:
        recipe: the method.
        answers: to train on.
        states: the target's at their tokens.
        options: how.
        folder: for the run's checkpoint; what a tracker writes goes beside it, into a folder whose name ends in .logs.
        about: what else the run is made of, for `saving.restore`.
    """

    def __init__(
        self,
        recipe: Recipe,
        answers: Sequence[Answer],
        states: Features,
        options: Options,
        folder: Path,
        about: Mapping[str, Any],
    ) -> None:
        from accelerate import Accelerator

        self.recipe, self._answers, self._states, self._options = recipe, answers, states, options
        self._folder, self._about = folder, {**about, **_lasting(options)}
        self._lengths = [len(answer.ids) for answer in answers]
        self._accelerator = Accelerator(
            cpu=states.target.device.type == "cpu",
            log_with=options.tracker or None,
            project_dir=folder.with_name(folder.name.removesuffix(".training") + ".logs"),
        )
        self._shared = Shared(self._accelerator, recipe)
        self._optimiser = torch.optim.AdamW(  # of the weights as they are shared
            [p for p in recipe.head.parameters() if p.requires_grad],
            lr=options.lr,
            betas=(0.9, 0.95),
            weight_decay=options.weight_decay,
        )
        self._each = options.accumulate * self._accelerator.num_processes  # batches of a step
        self._order = list(self._batches())
        self.total = len(self._order) // self._each
        if not self.total:
            raise BadOption("There are fewer batches than one step takes: make more data, or lower --accumulate.")
        self.progress = Progress()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return bool(self._accelerator.is_main_process)

    def _batches(self) -> Iterator[list[int]]:
        """The batches of the whole run."""
        options, epoch = self._options, 0
        whole, part = divmod(options.epochs, 1)
        if options.steps is not None:
            needed = options.steps * self._each
            while needed > 0:
                batches = order(self._lengths, options.batch_tokens, options.seed, epoch)[:needed]
                yield from batches
                needed, epoch = needed - len(batches), epoch + 1
            return
        for epoch in range(math.ceil(options.epochs)):
            batches = order(self._lengths, options.batch_tokens, options.seed, epoch)
            yield from batches if epoch < whole else batches[: round(part * len(batches))]

    def estimate(self) -> Estimate:
        """What the run would take, by two steps that are not kept."""
        parameters = sum(p.numel() for p in self.recipe.head.parameters() if p.requires_grad)
        before = {name: tensor.clone() for name, tensor in self.recipe.head.trained().items()}
        self._step(0)
        started = perf_counter()
        self._step(self.total // 2)
        seconds = perf_counter() - started
        self.recipe.head.fill(before)
        self._optimiser.state.clear()
        tokens = sum(len(self._answers[place].answer) for batch in self._order for place in batch)
        learnt = round(tokens * self.recipe.share)
        return Estimate(parameters, len(self._answers), self.total, learnt, parameters * 16, seconds * self.total)

    def run(
        self,
        measure: Measure | None,
        keep: Callable[[Progress], None],
        show: Callable[[News], None],
        *,
        goes_on: bool = False,
    ) -> Progress:
        """Train to the end, from the last checkpoint if there is one.

        Args:
            measure: real acceptance; None measures none, and the last weights are kept.
            keep: write the head as it stands; called when it is the best so far.
            show: told of every step.
            goes_on: the head was trained before, so what it begins with is measured, too.

        Raises:
            TrainingStopped: a loss or a gradient was not a number.
        """
        options = self._options
        self.progress = restore(self._folder, self.recipe.head, self._optimiser, self._about) or self.progress
        progress = self.progress
        if options.tracker:
            self._accelerator.init_trackers("outrider", {k: str(v) for k, v in self._about.items()})
        if goes_on and not progress.step:
            self._evaluate(measure, keep, None)
        while progress.step < self.total:
            loss, tokens = self._step(progress.step)
            progress.step, progress.tokens = progress.step + 1, progress.tokens + tokens
            progress.loss, progress.steps = progress.loss + loss, progress.steps + 1
            last = progress.step == self.total
            measured = last or progress.step % options.evaluate_every == 0
            if measured:
                self._evaluate(measure, keep, progress.loss / progress.steps)
                progress.loss, progress.steps = 0.0, 0
            if last or measured or progress.step % options.checkpoint_every == 0:
                tensors = state_of(self.recipe.head, self._optimiser, keep=self.leads)
                if self.leads:
                    save(self._folder, tensors, progress, self._about)
            latest = progress.curve[-1]["acceptance_length"] if progress.curve else None
            news = News(progress.step, self.total, loss, tokens, latest, measured)
            if options.tracker:
                self._track(news)
            show(news)
        for tracker in self._accelerator.trackers:
            tracker.finish()
        return progress

    def _track(self, news: News) -> None:
        found = {"loss": news.loss, "learning_rate": self._optimiser.param_groups[0]["lr"], "tokens": news.tokens}
        if news.measured and news.acceptance_length is not None:
            found["acceptance_length"] = news.acceptance_length
        self._accelerator.log(found, step=news.step)

    def _step(self, step: int) -> tuple[float, int]:
        """One optimiser step; its loss and answer tokens, over all processes."""
        options, accelerator = self._options, self._accelerator
        first = step * self._each + accelerator.process_index * options.accumulate
        self._optimiser.zero_grad()
        total, tokens = torch.zeros((), device=accelerator.device), 0
        for number in range(first, first + options.accumulate):
            chosen = [self._answers[place] for place in self._order[number]]
            batch = collate(chosen, self._states, seed=options.seed * 1_000_003 + number)
            batch = replace(batch, done=step / self.total)
            if self.recipe.share < 1:
                batch = pieces(batch, self.recipe.share)
            batch = batch.to(accelerator.device)
            lasts = number == first + options.accumulate - 1
            with (
                torch.autocast(accelerator.device.type, torch.bfloat16, enabled=options.bf16),
                self._shared.collecting(last=lasts),
            ):
                loss: Tensor = self._shared.module(batch).mean / options.accumulate
                accelerator.backward(loss)
            total, tokens = total + loss.detach(), tokens + batch.tokens
        norm = gathered(nn.utils.clip_grad_norm_(self.recipe.head.parameters(), options.clip))
        if not bool(torch.isfinite(total) & torch.isfinite(norm)):
            raise TrainingStopped(
                f"The loss or its gradient was no number in step {step + 1}: the last checkpoint is kept in "
                f"{self._folder}; lower --lr, or look for broken answers in the data."
            )
        for group in self._optimiser.param_groups:
            group["lr"] = options.rate(step, self.total)
        self._optimiser.step()
        sums = accelerator.reduce(torch.stack([total, torch.tensor(float(tokens), device=total.device)]), "sum")
        return float(sums[0]) / accelerator.num_processes, int(sums[1])

    def _evaluate(self, measure: Measure | None, keep: Callable[[Progress], None], loss: float | None) -> None:
        """Measure, and keep the head if it is the best so far. One process does it, on whole weights."""
        with self._shared.whole():
            if self.leads:
                self._measure(measure, keep, loss)

    def _measure(self, measure: Measure | None, keep: Callable[[Progress], None], loss: float | None) -> None:
        progress = self.progress
        found: dict[str, Any] = {"step": progress.step, "tokens": progress.tokens, "loss": loss}
        target = self.recipe.served(self._states.target)
        stats = measure(target, self.recipe.drafter(target)) if measure is not None else None
        length = stats.acceptance_length if stats is not None else None
        found["acceptance_length"] = length
        found["survival"] = list(stats.survival) if stats is not None else []
        progress.curve.append(found)
        if length is None or progress.best is None or length > progress.best:
            progress.best, progress.best_step = length, progress.step
            keep(progress)


def check_tracker(name: str) -> None:
    """That Accelerate has this tracker, and that it is installed; an empty name is none.

    Raises:
        BadOption: it is not.
    """
    if not name:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known, there = sorted(map(str, LOGGER_TYPE_TO_CLASS)), sorted(map(str, get_available_trackers()))
    if name not in known:
        raise BadOption(f"There is no tracker {name!r}: choose one of {', '.join(known)}.")
    if name not in there:
        raise BadOption(
            f"The tracker {name!r} is not installed: pip install {name}"
            f"{', or choose ' + ' or '.join(there) if there else ', or leave it out'}."
        )


def _lasting(options: Options) -> dict[str, Any]:
    """The options that a run cannot change on its way."""
    return {name: value for name, value in asdict(options).items() if name not in ("checkpoint_every", "tracker")}
