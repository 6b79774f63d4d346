"""Small tokenizers: alphabets whose every token is known, and real ones of both kinds, trained in a moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from outrider.pieces import Pieces

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
SCRIPTS = [
    "The quick brown fox jumps over the lazy dog, again and again; isn't that so? 12345 + 67 = 12412.",
    "def add(a, b):\n    if a:\n        return a + b\n\n\treturn  b  # two  spaces\n",
    "Однажды в студёную зимнюю пору я из лесу вышел; был сильный мороз.",
    "从前有一座山，山里有一座庙，庙里有一个老和尚。東京タワー",
    "كان يا ما كان في قديم الزمان ملك عظيم",
    "I love pizza 🍕🍕🍕 and sushi 🍣🍣 and also 👩‍🚀, naïve café Straße e\u0301.",
]


class Alphabet(Pieces):
    """A tokenizer that takes the longest token that fits; every token is given.

    Args:
        tokens: what each id spells; None for a special token.
    """

    def __init__(self, tokens: Sequence[str | None]) -> None:
        self.spelled = [None if token is None else token.encode() for token in tokens]
        self.ids = {piece: index for index, piece in enumerate(self.spelled) if piece is not None}
        self.specials = {index: f"<{index}>" for index, piece in enumerate(self.spelled) if piece is None}
        self.lead = None

    def encode(self, text: bytes, *, begins: bool) -> list[tuple[int, int]] | None:
        """See `Pieces`; None where a byte has no token."""
        found, at = [], 0
        while at < len(text):
            end = next((end for end in range(len(text), at, -1) if text[at:end] in self.ids), None)
            if end is None:
                return None
            found.append((self.ids[text[at:end]], end))
            at = end
        return found

    def turns(self) -> tuple[int | None, int | None]:
        """See `Pieces`."""
        return None, None


def byte_level(
    size: int = 400, specials: Sequence[str] = ("<|im_start|>", "<|im_end|>"), texts: Sequence[str] = SCRIPTS
) -> Any:
    """A byte-level BPE as GPT-2, SmolLM and Qwen have it, with ChatML."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(texts, _trainer(size, specials, pre_tokenizers.ByteLevel.alphabet()))
    options = {"bos_token": specials[0], "eos_token": specials[1]} if len(specials) > 1 else {}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **options)
    made.chat_template = CHATML if options else None
    return made


def sentence_piece(size: int = 500, *, indents: bool = False, texts: Sequence[str] = SCRIPTS) -> Any:
    """A BPE with "▁" for spaces and single bytes for what is rare, as Gemma has it; `indents` as Llama 2 does."""
    draft = Tokenizer(models.BPE())
    draft.normalizer = normalizers.Replace(" ", "▁")
    draft.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    draft.train_from_iterator(texts, _trainer(size - 260, (), [], limit_alphabet=80))
    learned = json.loads(draft.to_str())["model"]
    specials = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
    names = [*specials, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\n", *learned["vocab"], "▁"]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in learned["merges"]]
    inner = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    steps = [normalizers.Prepend("▁")] if indents else []
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
    inner.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TURNS
    return made


def _trainer(size: int, specials: Sequence[str], alphabet: list[str], **options: Any) -> Any:
    return trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False, **options
    )
