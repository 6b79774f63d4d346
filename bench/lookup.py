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
    plain = outrider.load(model, tokenizer=tokenizer, drafter="none")
    llm = plain.using(drafter="lookup")
    results = alternate(
        {
            "transformers, plain": lambda: transformers_run(model, ids, options.tokens),
            "transformers, prompt lookup 10": lambda: transformers_run(
                model, ids, options.tokens, prompt_lookup_num_tokens=10
            ),
            "outrider, plain": lambda: plain.generate(ids, max_new_tokens=options.tokens).token_ids,
            "outrider, lookup": lambda: llm.generate(ids, max_new_tokens=options.tokens).token_ids,
        },
        options.repeats,
    )
    seconds = {name: result["median_seconds"] for name, result in results.items()}
    ours = seconds["outrider, lookup"]
    report(
        "lookup",
        options,
        results,
        identical=len({tuple(result["ids"]) for result in results.values()}) == 1,
        stats=llm.generate(ids, max_new_tokens=options.tokens).stats.as_dict(),
        speed_against_transformers=seconds["transformers, plain"] / ours,
        speed_against_transformers_lookup=seconds["transformers, prompt lookup 10"] / ours,
        speed_against_plain=seconds["outrider, plain"] / ours,
        share_outside_forwards=overhead(llm, ids, options.tokens, 3),
    )


if __name__ == "__main__":
    main()
