"""Twenty prompts that have little in common: lengths, languages, alphabets, code, repetition, chat and raw text."""

from __future__ import annotations

from typing import Any

_STORY = (
    "The lighthouse keeper wrote down the weather every morning, and every evening he wrote down the ships. "
    "On the first day there were three ships and no wind. On the second day there were five ships and a little wind. "
)

PROMPTS: dict[str, Any] = {
    "one token": [504],
    "two words": "Hello there",
    "story": "Once upon a time there was a fox who",
    "four hundred tokens": _STORY * 8 + "On the last day",
    "repeated word": "very " * 40,
    "copy": "Repeat after me: red green blue yellow. red green blue yellow. red green",
    "python": "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "json": '[{"id": 1, "name": "Ada"}, {"id": 2, "name": "Grace"}, {"id": 3, "name":',
    "html": "<ul>\n  <li>apple</li>\n  <li>banana</li>\n  <li>",
    "numbers": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "list": "Shopping list:\n- milk\n- bread\n- eggs\n- ",
    "russian": "Однажды в студёную зимнюю пору я из лесу вышел; был сильный",
    "chinese": "从前有一座山，山里有一座庙，庙里有一个老和尚",
    "arabic": "كان يا ما كان في قديم الزمان ملك عظيم",
    "french": "La capitale de la France est Paris, et la capitale de l'Italie est",
    "emoji": "I love pizza 🍕🍕🍕 and sushi 🍣🍣 and also",
    "poem": "Roses are red,\nViolets are blue,\n",
    "question": [{"role": "user", "content": "What is the capital of Italy? Answer in one word."}],
    "system": [
        {"role": "system", "content": "You are a pirate. Answer like one."},
        {"role": "user", "content": "How are you today?"},
    ],
    "edit": [
        {
            "role": "user",
            "content": "Rewrite with x renamed to total:\n\nx = 0\nfor item in items:\n    x = x + item\nprint(x)\n",
        }
    ],
}
