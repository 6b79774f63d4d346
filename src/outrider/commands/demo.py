"""`outrider demo`: one prompt, plainly and speculatively."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from rich.console import Console

from ..api import load
from ..text import Prompt
from ..trace import Painter, coloured, legend
from .generate import record
from .showing import describe, versions

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


def run(max_new_tokens: int, *, show: bool) -> dict[str, Any]:
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
        "plain": {"seconds": plain_seconds, **record(slow, False)},
        "speculative": {"seconds": fast_seconds, **record(quick, False)},
        "configuration": fast.configuration,
        "versions": versions(),
    }
