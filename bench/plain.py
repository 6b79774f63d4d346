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
    llm = outrider.load(model, tokenizer=tokenizer, drafter="none", prefix_memory=0, fast=False)
    fast = outrider.load(model, tokenizer=tokenizer, drafter="none", prefix_memory=0)
    results = alternate(
        {
            "transformers": lambda: transformers_run(model, ids, options.tokens),
            "outrider, the same modules": lambda: llm.generate(ids, max_new_tokens=options.tokens).token_ids,
            f"outrider, {fast.target.build}": lambda: fast.generate(ids, max_new_tokens=options.tokens).token_ids,
        },
        options.repeats,
    )
    transformers, modules, quick = (result["median_seconds"] for result in results.values())
    report(
        "plain",
        options,
        results,
        identical=len({tuple(result["ids"]) for result in results.values()}) == 1,
        same_modules_against_transformers=transformers / modules,
        default_against_transformers=transformers / quick,
        share_outside_passes_same_modules=overhead(llm, ids, options.tokens, 3),
        share_outside_passes_default=overhead(fast, ids, options.tokens, 3),
    )


if __name__ == "__main__":
    main()
