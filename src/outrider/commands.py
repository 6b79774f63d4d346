"""What the commands do, apart from parsing: run the library, show it to a person or hand it on as a document."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import __version__
from . import policy as policies
from .api import Output, Outrider, load
from .engine import PREFILL_CHUNK
from .errors import BadOption, BadPrompt
from .measure import machine
from .measure.costs import FREE, Costs, Plan, check_plot, draw_costs
from .measure.costs import measure as costs_of
from .sampling import Sampling
from .stats import Stats
from .text import Prompt
from .trace import Painter, as_json, coloured, legend, table

_LARGEST_FILE = 64 << 20  # bytes of prompts read into memory

_DEMO_PROMPT = """Rewrite this Python class with the method `total` renamed to `sum_prices`, and change nothing else:

```python
class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.prices = []

    def add(self, name, price, count=1):
        if count < 1:
            raise ValueError("count must be positive")
        self.prices.append((name, price, count))

    def total(self):
        return sum(price * count for name, price, count in self.prices)

    def receipt(self):
        lines = [f"{name}: {price} x {count}" for name, price, count in self.prices]
        return "\\n".join(lines)
```"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to load; see `api.load`. A policy of None was not asked for."""

    target: str
    drafter: str
    verifier: str
    policy: str | None
    dtype: str | None
    device: str | None
    offline: bool
    trust_remote_code: bool
    fast: bool | None = None
    quantize: str | None = None
    device_map: str | None = None
    compile: bool = False
    prefill_chunk: int = PREFILL_CHUNK

    def load(self) -> Outrider:
        """Load it, refusing options that would change nothing."""
        if self.drafter == "none" and self.policy is not None:
            raise BadOption(
                "The drafter 'none' drafts nothing, so --policy would change nothing: leave one of them out."
            )
        torch.set_num_threads(machine.cores())  # those that this process may use, whatever the environment says
        return load(
            self.target,
            self.drafter,
            self.verifier,
            self.policy or policies.DEFAULT,
            dtype=self.dtype,
            device=self.device,
            offline=self.offline,
            trust_remote_code=self.trust_remote_code,
            fast="auto" if self.fast is None else self.fast,
            quantize=self.quantize,
            device_map=self.device_map,
            compile=self.compile,
            prefill_chunk=self.prefill_chunk,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to generate: one of the three sources of prompts, and how far."""

    chat: str | None
    prompt: str | None
    prompts: Path | None
    batch: int
    max_new_tokens: int
    stop: tuple[str, ...]
    prediction: Path | None = None

    def read(self) -> list[Prompt]:
        """The prompts.

        Raises:
            BadOption, BadPrompt: none or several sources, or a file that cannot be used.
        """
        given = [source for source in (self.chat, self.prompt, self.prompts) if source is not None]
        if len(given) != 1:
            raise BadOption("Give exactly one of --chat, --prompt and --prompts.")
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


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a file: JSON lines with "prompt" or "messages" where it is named .jsonl, else a line each.

    Raises:
        BadPrompt: missing, too large, empty, or a line that is neither.
    """
    if not path.is_file():
        raise BadPrompt(f"There is no file {path}: check the path.")
    if path.stat().st_size > _LARGEST_FILE:
        raise BadPrompt(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: split it.")
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadPrompt(f"{path} is not UTF-8 text: convert it first.") from error
    if not lines:
        raise BadPrompt(f"{path} has no prompts: put one on each line.")
    if path.suffix != ".jsonl":
        return list(lines)
    return [_json_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _json_prompt(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadPrompt(f"{where} is no JSON: write one object per line.") from error
    if isinstance(record, dict):
        for name, kind in (("prompt", str), ("messages", list)):
            if isinstance(record.get(name), kind) and record[name]:
                found: Prompt = record[name]
                return found
    raise BadPrompt(f'{where} has neither a "prompt" (text) nor "messages" (a list): add one.')


def generate(settings: Settings, wanted: Wanted, sampling: Sampling, *, trace: bool, show: bool) -> dict[str, Any]:
    """Load, generate, show; the document is what `--json` prints. Ctrl-C keeps what is done."""
    expected, prompts = wanted.expected(), wanted.read()
    if sampling.temperature == 0 and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
        raise BadOption("--top-k, --top-p and --min-p change nothing at temperature 0: set --temperature too.")
    llm = settings.load()
    started = perf_counter()
    if show and wanted.prompts is None:
        outputs = [_stream(llm, prompts[0], wanted, sampling, expected)]
    else:
        outputs = list(_in_batches(llm, prompts, wanted, sampling, show, expected))
    seconds = perf_counter() - started
    if show:
        _summary(outputs, seconds, trace, llm)
    records = [_record(output, trace) for output in outputs]
    return {
        "outputs": records,
        "seconds": seconds,
        "configuration": llm.configuration,
        "sampling": {key: value for key, value in asdict(sampling).items() if key != "processors"},
        "max_new_tokens": wanted.max_new_tokens,
        "stop": list(wanted.stop),
        "versions": versions(),
    }


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


def _record(output: Output, trace: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "prompt_tokens": len(output.prompt_ids),
        "reused_tokens": output.reused,
        "seed": output.seed,
        "exactness": output.exactness,
        "verifier": output.verifier,
        "lossless": output.lossless,
        "stats": output.stats.as_dict(),
    }
    if trace:
        record["rounds"] = [as_json(round_) for round_ in output.rounds]
    return record


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


def describe(stats: Stats, seconds: float) -> str:
    """The figures in one line."""
    line = f"{stats.tokens} tokens in {seconds:.1f} s ({stats.tokens / seconds:.1f} tokens/s), {stats.rounds} rounds"
    if stats.acceptance_length is None or stats.acceptance_rate is None:
        return f"{line}, nothing drafted"
    return f"{line}, acceptance length {stats.acceptance_length:.2f}, {stats.acceptance_rate:.0%} of the draft accepted"


def relaxed(stats: Stats, verifier: str) -> str:
    """That the output is not the target's own, and how far it is from it."""
    line = f"RELAXED by {verifier} (lossless: false): the output does not have the target's law"
    if stats.mean_tv is None or stats.mean_kl is None:
        return line
    return f"{line}; mean TV {stats.mean_tv:.3g}, mean KL {stats.mean_kl:.3g} over {stats.tokens} tokens"


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "outrider": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def costs(settings: Settings, plan: Plan, plot: Path | None, *, show: bool) -> dict[str, Any]:
    """Measure what passes and drafts cost, show it as a table, and draw it if asked."""
    if plot is not None:
        check_plot(plot)
    llm = settings.load()
    furthest = max(plan.contexts) + max(plan.widths)
    if furthest > llm.target.context:
        raise BadOption(
            f"Context and width reach {furthest} tokens and the target holds {llm.target.context}: take smaller ones."
        )
    with progress_bar("measuring", plan.steps) as advance:
        measured = costs_of(llm, plan, advance)
    if plot is not None:
        draw_costs(measured, plot)
    if show:
        _show_costs(measured)
    return measured.as_dict()


def _show_costs(measured: Costs) -> None:
    console = Console(highlight=False)
    for (batch, context), line in measured.lines.items():
        grid = Table(title=f"batch {batch}, {context} tokens before", title_justify="left")
        for name in ("tokens per row", "ms per pass", "against the first"):
            grid.add_column(name, justify="right")
        for cost in line:
            grid.add_row(str(cost.width), f"{cost.seconds * 1e3:.1f}", f"{measured.ratio(cost):.2f}")
        console.print(grid)
        console.print(f"Free (at most {FREE} of the first) up to {measured.knee(batch, context)} tokens.\n")
    console.print(
        f"Weights read per pass: {measured.pass_bytes / 1e9:.2f} GB, at {measured.bandwidth_share:.0%} of the "
        f"{measured.bandwidth / 1e9:.1f} GB/s that a copy reaches here."
    )
    if measured.draft_seconds is None:
        console.print("The drafter proposed nothing.")
    else:
        console.print(
            f"Drafting: {measured.draft_seconds * 1e3:.3f} ms per token, {measured.drafted} tokens at a time."
        )


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with the time left, on standard error and only before a person; gives what advances it."""
    errors = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def demo(max_new_tokens: int, *, show: bool) -> dict[str, Any]:
    """Plain and speculative decoding of one prompt, one after the other in this process, on the demo model."""
    console = Console(highlight=False, soft_wrap=True)
    fast = load(prefix_memory=0)  # both shall read the prompt
    plain = fast.using(drafter="none")
    prompt: Prompt = [{"role": "user", "content": _DEMO_PROMPT}]
    for llm in (plain, fast.using()):  # another drafter, for this one must not have seen the answer
        llm.generate(prompt, max_new_tokens=8)  # warm-up: first passes allocate and choose kernels
    started = perf_counter()
    slow = plain.generate(prompt, max_new_tokens=max_new_tokens)
    plain_seconds = perf_counter() - started
    stream, painter = fast.stream(prompt, max_new_tokens=max_new_tokens), Painter(fast.tokenizer)
    started = perf_counter()
    for piece in stream:
        if show:
            console.print(coloured(painter.paint(piece.text, piece.round)), end="")
    fast_seconds = perf_counter() - started
    quick = stream.output
    same = slow.token_ids == quick.token_ids
    if show:
        console.print("\n")
        console.print(legend())
        console.print(f"plain        {describe(slow.stats, plain_seconds)}")
        console.print(f"speculative  {describe(quick.stats, fast_seconds)}")
        verdict = "identical token ids" if same else "DIFFERENT token ids"
        console.print(f"{plain_seconds / fast_seconds:.2f} times as fast, {verdict}", style="bold")
    return {
        "identical": same,
        "speedup": plain_seconds / fast_seconds,
        "plain": {"seconds": plain_seconds, **_record(slow, False)},
        "speculative": {"seconds": fast_seconds, **_record(quick, False)},
        "configuration": fast.configuration,
        "versions": versions(),
    }
