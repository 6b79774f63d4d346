"""Plain decoding: Outrider's loop with the drafter `none` against Transformers' `generate`, on the same modules.

usage: python bench/plain.py [--target FOLDER] [--tokens N] [--repeats N]
"""

from __future__ import annotations

from common import PROMPTS, alternate, arguments, chat_ids, model_and_tokenizer, overhead, report, transformers_run

import outrider


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__, tokens=64)
    model, tokenizer = model_and_tokenizer(options)
    ids = chat_ids(tokenizer, PROMPTS["chat"])
    llm = outrider.load(model, tokenizer=tokenizer, drafter="none")
    results = alternate(
        {
            "transformers": lambda: transformers_run(model, ids, options.tokens),
            "outrider": lambda: llm.generate(ids, max_new_tokens=options.tokens).token_ids,
        },
        options.repeats,
    )
    report(
        "plain",
        options,
        results,
        identical=results["transformers"]["ids"] == results["outrider"]["ids"],
        speed_against_transformers=results["transformers"]["median_seconds"] / results["outrider"]["median_seconds"],
        share_outside_forwards=overhead(llm, ids, options.tokens, 3),
    )


if __name__ == "__main__":
    main()
