"""Draw docs/trace.svg: a coloured answer of the demo model and the first rounds that wrote it.

usage: python docs/picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

import outrider
from outrider.trace import Painter, coloured, legend, table

QUESTION = "Repeat this list twice, exactly as it is:\n- two red apples\n- three green pears\n- one yellow lemon"


def main() -> None:
    """Generate, record, write."""
    llm = outrider.load("demo", drafter="lookup")
    painter = Painter(llm.tokenizer)
    stream = llm.stream([{"role": "user", "content": QUESTION}], max_new_tokens=60)
    spans = [span for piece in stream for span in painter.paint(piece.text, piece.round)]
    output = stream.output
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(coloured(spans))
    console.print()
    console.print(legend())
    console.print()
    first = next((place for place, round_ in enumerate(output.rounds) if round_.drafted), 0)
    before = sum(len(round_.tokens) for round_ in output.rounds[:first])
    shown = output.rounds[first : first + 6]
    console.print(table(shown, [*output.prompt_ids, *output.token_ids[:before]], llm.tokenizer))
    path = Path(__file__).parent / "trace.svg"
    path.write_text(console.export_svg(title="outrider generate --target demo --drafter lookup --trace"))
    print(path)


if __name__ == "__main__":
    main()
