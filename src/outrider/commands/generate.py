"""`outrider generate`: write answers, show them as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from ..api import MAX_NEW_TOKENS, Output, Outrider, Transcript
from ..errors import BadOption, BadPrompt
from ..listening import ListeningStream
from ..prompt_files import read_prompts
from ..sampling import Sampling
from ..stats import Stats
from ..text import Prompt
from ..trace import Painter, as_json, coloured, table
from .settings import Settings
from .showing import describe, progress_bar, relaxed, versions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to generate: one of the three sources of prompts, or a recording, and how far."""

    chat: str | None
    prompt: str | None
    prompts: Path | None
    batch: int
    max_new_tokens: int | None
    stop: tuple[str, ...]
    prediction: Path | None = None
    audio: Path | None = None
    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None

    @property
    def about_audio(self) -> dict[str, Any]:
        """The options of `generate` that are about a recording; none without one."""
        if self.audio is None:
            if any(option is not None for option in (self.language, self.task, self.timestamps)):
                raise BadOption("--language, --task and --timestamps are about a recording: give --audio FILE.")
            return {}
        if self.chat is not None or self.prompts is not None:
            raise BadOption("With --audio, the only text is --prompt, which stands before the recording.")
        if self.stop:
            raise BadOption("A recording is heard to its end: leave --stop out.")
        names = ("language", "task", "timestamps")
        return {"audio": self.audio, **{name: getattr(self, name) for name in names}}

    def read(self) -> list[Prompt]:
        """The prompts.

        Raises:
            BadOption, BadPrompt: none or several sources, or a file that cannot be used.
        """
        if self.audio is not None:
            return []
        given = [source for source in (self.chat, self.prompt, self.prompts) if source is not None]
        if len(given) != 1:
            raise BadOption("Give exactly one of --chat, --prompt and --prompts, or --audio.")
        if self.prompts is not None:
            return read_prompts(self.prompts)
        if self.chat is not None:
            if not self.chat:
                raise BadPrompt("The prompt is empty: give at least one token to continue.")
            return [[{"role": "user", "content": self.chat}]]
        assert self.prompt is not None
        return [self.prompt]

    def expected(self) -> str | None:
        """The text that the caller expects, if they say so.

        Raises:
            BadOption: it goes with a file of prompts, or cannot be read.
        """
        if self.prediction is None:
            return None
        if self.prompts is not None:
            raise BadOption("--prediction is of one answer: give the prompt with --chat or --prompt.")
        try:
            return self.prediction.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(f"The prediction {self.prediction} cannot be read: name a file of UTF-8 text.") from error


def with_texts(drafter: str, corpus: Path | None, global_tokens: int | None) -> str:
    """A drafter's spec with --corpus and --global-tokens in it.

    Raises:
        BadOption: the drafter has no use for them.
    """
    options = [] if global_tokens is None else [f"global={global_tokens}"]
    options += [] if corpus is None else [f"corpus={corpus}"]
    name, _, argument = drafter.partition(":")
    if options and name != "suffix":
        raise BadOption("--corpus and --global-tokens are for the drafter 'suffix': take it, or leave them out.")
    return f"{name}:{','.join([argument] * bool(argument) + options)}" if options else drafter


def run(settings: Settings, wanted: Wanted, sampling: Sampling, *, trace: bool, show: bool) -> dict[str, Any]:
    """Load, generate, show; the document is what `--json` prints. Ctrl-C keeps what is done.

    Raises:
        UsageError: options or prompts that cannot be used, before any work.
    """
    expected, prompts, audio = wanted.expected(), wanted.read(), wanted.about_audio
    if sampling.temperature == 0 and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
        raise BadOption("--top-k, --top-p and --min-p change nothing at temperature 0: set --temperature too.")
    llm = settings.load()
    started = perf_counter()
    if audio:
        outputs = [_heard(llm, wanted, sampling, expected, audio, show)]
    elif show and wanted.prompts is None:
        outputs = [_stream(llm, prompts[0], wanted, sampling, expected)]
    else:
        outputs = list(_in_batches(llm, prompts, wanted, sampling, show, expected))
    seconds = perf_counter() - started
    if show:
        _summary(outputs, seconds, trace, llm)
    records = [record(output, trace) for output in outputs]
    return {
        "outputs": records,
        "seconds": seconds,
        "configuration": llm.configuration,
        "sampling": {key: value for key, value in asdict(sampling).items() if key != "processors"},
        "max_new_tokens": wanted.max_new_tokens or (None if audio else MAX_NEW_TOKENS),
        "batch": 1 if wanted.prompts is None else wanted.batch,
        "stop": list(wanted.stop),
        "versions": versions(),
    }


def _heard(
    llm: Outrider,
    wanted: Wanted,
    sampling: Sampling,
    expected: str | None,
    audio: dict[str, Any],
    show: bool,
) -> Output:
    """Hear a recording, printing what is certain as it comes; where that is not shown, with a bar on standard error.

    Text is not coloured by its origin here: some of it is written twice, at the borders of chunks.
    """
    stream = llm.stream(
        wanted.prompt, sampling=sampling, max_new_tokens=wanted.max_new_tokens, prediction=expected, **audio
    )
    assert isinstance(stream, ListeningStream)
    console, shown = Console(highlight=False, soft_wrap=True, markup=False), 0
    with contextlib.ExitStack() as stack:
        seconds = ceil(stream.output.duration)
        advance = None if show else stack.enter_context(progress_bar("listening (seconds)", seconds))
        try:
            for piece in stream:
                if advance is None:
                    console.print(piece.text, end="")
                while advance is not None and shown < int(stream.heard):
                    shown += 1
                    advance()
        except KeyboardInterrupt:
            Console(stderr=True).print("Interrupted: what is done is kept.")
    if show:
        console.print()
    return stream.output


def _stream(llm: Outrider, prompt: Prompt, wanted: Wanted, sampling: Sampling, expected: str | None) -> Output:
    """Generate one answer, printing it as it is committed, coloured where a person reads."""
    console = Console(highlight=False, soft_wrap=True)
    painter = Painter(llm.tokenizer)
    stream = llm.stream(
        prompt, sampling=sampling, max_new_tokens=wanted.max_new_tokens, stop=wanted.stop, prediction=expected
    )
    try:
        for piece in stream:
            console.print(coloured(painter.paint(piece.text, piece.round)), end="")
    except KeyboardInterrupt:
        stream.stop()
    console.print()
    return stream.output


def _in_batches(
    llm: Outrider, prompts: Sequence[Prompt], wanted: Wanted, sampling: Sampling, show: bool, expected: str | None
) -> Iterator[Output]:
    """Generate many answers, a batch at a time, with a bar on standard error and the answers on standard output.

    A text that is expected is that of the only prompt.
    """
    options: dict[str, Any] = {} if expected is None else {"prediction": [expected]}
    with progress_bar("generating", len(prompts)) as advance:
        try:
            for first in range(0, len(prompts), wanted.batch):
                part = prompts[first : first + wanted.batch]
                outputs = llm.generate(
                    part, sampling=sampling, max_new_tokens=wanted.max_new_tokens, stop=wanted.stop, **options
                )
                for place, output in enumerate(outputs):
                    if show:
                        print(f"--- {first + place + 1}\n{output.text}")
                    advance()
                    yield output
        except KeyboardInterrupt:
            Console(stderr=True).print("Interrupted: what is done is kept.")


def record(output: Output, trace: bool) -> dict[str, Any]:
    """An answer as `--json` has it."""
    found: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "prompt_tokens": output.prompt_tokens,
        "prompt_ids": list(output.prompt_ids),
        "reused_tokens": output.reused,
        "seed": output.seed,
        "exactness": output.exactness,
        "verifier": output.verifier,
        "lossless": output.lossless,
        "stats": output.stats.as_dict(),
    }
    if output.source_ids:
        found["source_ids"] = list(output.source_ids)
    if isinstance(output, Transcript):
        found["segments"] = [asdict(segment) for segment in output.segments]
        found |= {"language": output.language, "duration": output.duration}
    if trace:
        found["rounds"] = [as_json(round_) for round_ in output.rounds]
    return found


def _summary(outputs: Sequence[Output], seconds: float, trace: bool, llm: Outrider) -> None:
    errors = Console(stderr=True, highlight=False)
    if trace:
        for output in outputs:
            errors.print(table(output.rounds, output.prompt_ids, llm.tokenizer))
    stats = Stats.of([round_ for output in outputs for round_ in output.rounds])
    errors.print(describe(stats, seconds), style="dim")
    if not llm.verifier.lossless:
        errors.print(relaxed(stats, llm.verifier.spec), style="yellow")
    seeds = sorted({output.seed for output in outputs})
    if len(outputs) == 1:
        errors.print(f"seed {seeds[0]}, {outputs[0].finish_reason}, drafter {llm.drafter.spec}", style="dim")
    if llm.drafter.note:
        errors.print(llm.drafter.note, style="dim")
