"""The decision matrix: what speaks for a way to draft, what against it, and what rules it out. Pure data.

A rule applies to a situation or not; if it does, it adds points to some methods, or rules them out. The reasons stand
in the rules, so an answer explains itself, and docs/choosing.md is made from them. Where they come from stands in the
last column there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .situation import Situation

COPYING = ("suffix", "lookup")
FREE = ("suffix", "lookup", "reference", "recycle", "lookahead")
TRAINED = ("medusa", "eagle", "eagle3", "dflash")
SMALL = ("model", "translated", "distilled", "cascade")
_HIGH = 0.9  # temperature


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the matrix.

    Attributes:
        when: the situation, in words.
        applies: whether it is that.
        methods: those that it speaks of.
        points: what it adds to them; None rules them out.
        why: the reason.
        source: where it comes from.
    """

    when: str
    applies: Callable[[Situation], bool]
    methods: tuple[str, ...]
    points: int | None
    why: str
    source: str


RULES: tuple[Rule, ...] = (
    Rule(
        "the answer repeats the prompt", lambda s: s.text_in_prompt is True, COPYING, 3,
        "the answer quotes its prompt, so copies are right, long, and cost next to nothing",
        "Transformers (prompt lookup); measured: 2.8 times on edits, 1.9 on summaries",
    ),
    Rule(
        "the answer repeats the prompt", lambda s: s.text_in_prompt is True, ("reference",), 2,
        "where the prompt is the text to be edited it can be given as the expected text",
        "predicted outputs (OpenAI), 2304.04487",
    ),
    Rule(
        "the answer repeats the prompt", lambda s: s.text_in_prompt is True, ("cascade",), 1,
        "copies come first where they are long", "SuffixDecoding, 2411.04975",
    ),
    Rule(
        "the answer repeats the prompt", lambda s: s.text_in_prompt is True, ("model", "translated"), -1,
        "a draft model has to read the long prompt first", "measured: 0.6 times on retrieval with short answers",
    ),
    Rule(
        "the answer does not repeat the prompt", lambda s: s.text_in_prompt is False, ("lookup",), -2,
        "there is little to copy from the prompt", "Transformers (prompt lookup)",
    ),
    Rule(
        "the answer does not repeat the prompt", lambda s: s.text_in_prompt is False, ("suffix",), -1,
        "only its own text and earlier answers are left to copy from", "measured: 1.1 to 1.2 times on chat",
    ),
    Rule(
        "the answer does not repeat the prompt", lambda s: s.text_in_prompt is False, ("model", "translated"), 1,
        "a model drafts what is written nowhere yet", "measured: 1.3 times on chat, across tokenizers",
    ),
    Rule(
        "the answer does not repeat the prompt", lambda s: s.text_in_prompt is False, ("reference",), None,
        "there is no text to follow", "2304.04487",
    ),
    Rule(
        "training is possible", lambda s: s.can_train is True, ("eagle3", "dflash"), 2,
        "trained on the target's own answers it is accepted the most", "EAGLE-3, 2503.01840; DFlash",
    ),
    Rule(
        "training is possible", lambda s: s.can_train is True, ("medusa", "eagle", "distilled"), 1,
        "a head or a small model of the target's own guesses better than any model off the shelf",
        "Medusa, 2401.10774; EAGLE, 2401.15077",
    ),
    Rule(
        "training is not possible", lambda s: s.can_train is False, (*TRAINED, "distilled"), None,
        "it has to be trained, unless somebody has published one for this very target", "the papers",
    ),
    Rule(
        "training is not possible", lambda s: s.can_train is False, ("early_exit",), -1,
        "an exit of a target that was not trained for it is nearly useless", "LayerSkip, 2404.16710",
    ),
    Rule(
        "training is possible", lambda s: s.can_train is True, ("early_exit",), -1,
        "heads that see the last states do better than an exit", "LayerSkip, 2404.16710",
    ),
    Rule(
        "there is a small model with the same tokenizer", lambda s: s.small_model is True, ("model",), 2,
        "it can be used at once, and its probabilities are the drafts' own", "2211.17192",
    ),
    Rule(
        "there is a small model with the same tokenizer", lambda s: s.small_model is True, ("cascade",), 2,
        "it drafts where there is nothing to copy", "SuffixDecoding, 2411.04975",
    ),
    Rule(
        "there is a small model with the same tokenizer", lambda s: s.small_model is True, ("translated",), -2,
        "with the same tokenizer nothing has to be translated", "2502.05202",
    ),
    Rule(
        "there is no small model with the same tokenizer", lambda s: s.small_model is False, ("model",), None,
        "it needs a model that means the same tokens by the same ids", "2211.17192",
    ),
    Rule(
        "there is no small model with the same tokenizer", lambda s: s.small_model is False, ("cascade",), -1,
        "its second drafter has to draft across tokenizers", "2502.05202",
    ),
    Rule(
        "there is no small model with the same tokenizer", lambda s: s.small_model is False, ("translated",), 1,
        "any small model can draft across tokenizers", "2502.05202",
    ),
    Rule(
        "the checkpoint has multi-token-prediction layers", lambda s: s.has_mtp is True, ("mtp",), 3,
        "the drafter has come with the target, and was trained with it", "DeepSeek-V3",
    ),
    Rule(
        "the checkpoint has no multi-token-prediction layers", lambda s: s.has_mtp is False, ("mtp",), None,
        "the checkpoint has no such layers", "DeepSeek-V3",
    ),
    Rule(
        "nobody knows the checkpoint", lambda s: s.has_mtp is None, ("mtp",), -3,
        "few checkpoints have such layers", "DeepSeek-V3",
    ),
    Rule(
        "one answer is to come fast", lambda s: s.goal == "latency", ("eagle", "eagle3", "dflash"), 1,
        "no second model has to read the prompt, and the most tokens are kept per pass", "2503.01840",
    ),
    Rule(
        "one answer is to come fast", lambda s: s.goal == "latency", ("model", "translated", "distilled"), -1,
        "the first token waits until the draft model has read the prompt", "measured on CPU",
    ),
    Rule(
        "all answers together are to come fast", lambda s: s.goal == "throughput", COPYING, 1,
        "drafting takes nothing from the target", "vLLM",
    ),
    Rule(
        "all answers together are to come fast", lambda s: s.goal == "throughput",
        (*SMALL, "lookahead", "recycle"), -1,
        "its passes or its wide trees take what other requests could use", "vLLM #26504",
    ),
    Rule(
        "eight requests or more at a time", lambda s: s.large_batch, ("lookahead", "recycle", "medusa"), -2,
        "its wide trees fill a pass that the batch has filled already", "MagicDec, 2408.11049",
    ),
    Rule(
        "eight requests or more at a time", lambda s: s.large_batch,
        ("model", "translated", "cascade", "eagle", "eagle3"), -1,
        "verification is no longer free, and drafts have to be short", "vLLM #26504",
    ),
    Rule(
        "eight requests or more at a time", lambda s: s.large_batch, COPYING, 1,
        "it drafts only where it is sure, and nothing elsewhere", "2411.04975",
    ),
    Rule(
        "on a CPU", lambda s: s.hardware == "cpu", ("lookahead",), -2,
        "passes are cheap up to 4 to 8 tokens here, and it needs dozens", "measured (docs/performance.md)",
    ),
    Rule(
        "on a CPU", lambda s: s.hardware == "cpu", ("recycle", "medusa"), -1,
        "passes are cheap up to 4 to 8 tokens here, which is a small tree", "measured (docs/performance.md)",
    ),
    Rule(
        "on a CPU", lambda s: s.hardware == "cpu", COPYING, 1,
        "it needs no arithmetic, which is what a CPU is short of", "measured (docs/performance.md)",
    ),
    Rule(
        "on a GPU", lambda s: s.hardware == "gpu", ("eagle3", "dflash"), 1,
        "passes are cheap up to dozens of tokens at small batches", "2503.01840; Google on TPU v5p",
    ),
    Rule(
        "sampling at a high temperature", lambda s: (s.temperature or 0) >= _HIGH, FREE, -1,
        "a token that was chosen, not drawn, is the sampled one less often than a draw from a like law",
        "Hugging Face (assisted generation); 2408.07978",
    ),
)  # fmt: skip
