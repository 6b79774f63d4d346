"""Prompts that a proof uses where none are given: plain text, so that base models can continue them too.

Half of them repeat themselves, so that drafters which copy have something to copy; all of them turn off sooner or
later, so that drafts are refused too. The short ones are for the law of a few tokens, in the order in which they are
tried.
"""

from __future__ import annotations

PROMPTS = (
    "The garden had four beds. In the first bed grew beans, in the second bed grew peas, in the third bed grew",
    "def area(shape):\n    if shape.kind == 'circle':\n        return 3.14 * shape.radius ** 2\n    if shape.kind ==",
    "Copy the list and add one line.\n\n- bread, 2 loaves\n- milk, 1 litre\n- eggs, 12\n\n- bread, 2 loaves\n- milk,",
    "Question: Why do ships float although they are made of steel?\nAnswer:",
    '[{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Lima"}, {"id": 3, "city":',
    "Der Zug nach Wien fährt um acht Uhr ab. Le train pour Vienne part à huit heures. The train to Vienna",
)
SHORT = (
    "one two three one two three one two",
    "a b c a b c a b c a b",
    "The dog and the cat and the dog and the",
)
