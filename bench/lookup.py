"""Prompt lookup on a rewrite-this-file prompt: Outrider against Transformers, plain and with its own prompt lookup.

usage: python bench/lookup.py [--target FOLDER] [--tokens N] [--repeats N]
"""

from __future__ import annotations

from common import PROMPTS, alternate, arguments, chat_ids, model_and_tokenizer, overhead, report, transformers_run

import outrider


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__, tokens=160)
    model, tokenizer = model_and_tokenizer(options)
    ids = chat_ids(tokenizer, PROMPTS["edit"])
    modules = outrider.load(model, tokenizer=tokenizer, drafter="lookup", prefix_memory=0, fast=False)
    llm = outrider.load(model, tokenizer=tokenizer, drafter="lookup", prefix_memory=0)
    plain = llm.using(drafter="none")
    results = alternate(
        {
            "transformers, plain": lambda: transformers_run(model, ids, options.tokens),
            "transformers, prompt lookup 10": lambda: transformers_run(
                model, ids, options.tokens, prompt_lookup_num_tokens=10
            ),
            "outrider, lookup, the same modules": lambda: (
                modules.generate(ids, max_new_tokens=options.tokens).token_ids
            ),
            f"outrider, plain, {llm.target.build}": lambda: (
                plain.generate(ids, max_new_tokens=options.tokens).token_ids
            ),
            f"outrider, lookup, {llm.target.build}": lambda: llm.generate(ids, max_new_tokens=options.tokens).token_ids,
        },
        options.repeats,
    )
    base, theirs, same, ours_plain, ours = (result["median_seconds"] for result in results.values())
    report(
        "lookup",
        options,
        results,
        identical=len({tuple(result["ids"]) for result in results.values()}) == 1,
        stats=llm.generate(ids, max_new_tokens=options.tokens).stats.as_dict(),
        same_modules_against_transformers=base / same,
        same_modules_against_transformers_lookup=theirs / same,
        default_against_transformers=base / ours,
        default_against_transformers_lookup=theirs / ours,
        default_against_own_plain=ours_plain / ours,
        share_outside_passes=overhead(llm, ids, options.tokens, 3),
    )


if __name__ == "__main__":
    main()
