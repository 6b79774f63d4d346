"""The suffix drafter against its definition, and what of one request reaches another: drafts, and no more of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_automaton import Counted
from toy import Table, ToyTarget

from outrider.drafters import Setting, make_drafter
from outrider.drafters.automaton import Automaton
from outrider.drafters.suffix import GLOBAL_TOKENS, Outputs, Suffix
from outrider.errors import BadOption
from outrider.tree import depths
from outrider.types import Budget, Draft, Scores

NO_SCORES = Scores(torch.zeros(0, 5))


def propose(drafter: Suffix, state: Any, budget: Budget) -> Draft:
    """One draft for one row."""
    (draft,) = drafter.propose([state], [budget], [], [])
    return draft


def best_of(counted: Counted, text: list[int], factor: float, depth: int) -> tuple[list[list[int]], float]:
    """The definition: of all lengths of match the continuations with the highest score, and that score."""
    found: list[tuple[float, list[int]]] = [(0.0, [])]
    for length in range(1, min(counted.longest, len(text)) + 1):
        context = tuple(text[-length:])
        if context in counted.after:
            tokens, score = counted.path(context, min(int(factor * length), depth))
            found.append((score, tokens))
    highest = max(score for score, _ in found)
    return [tokens for score, tokens in found if score == pytest.approx(highest)], highest


@pytest.mark.parametrize("seed", range(25))
def test_the_best_scored_continuation_is_drafted(seed: int) -> None:
    """On random texts that grow by random blocks; with what others wrote, where that scores higher."""
    chance = random.Random(seed)
    factor, longest, doubt = chance.choice([1.0, 1.5, 4.0]), chance.choice([1, 3, 32]), chance.choice([0.0, 1.7])
    drafter = Suffix(factor, longest, doubt, global_tokens=chance.choice([0, 1000]))
    written: list[list[int]] = []
    for _ in range(4):
        text = chance.choices(range(3), k=chance.randrange(1, 6))
        prompt, state = list(text), drafter.begin(text, {})
        for _ in range(12):
            budget = Budget(chance.randrange(0, 7))
            draft = propose(drafter, state, budget)
            own, score = best_of(Counted([text], longest, doubt), text, factor, budget.depth)
            if drafter.spec.endswith("=1000"):
                others, higher = best_of(Counted(written, longest, doubt), text, factor, budget.depth)
                if higher >= score:
                    own, score = own * (higher == pytest.approx(score)) + others, higher
            assert draft.tree.tokens[0] == text[-1]
            assert draft.tree.tokens[1:].tolist() in own
            assert draft.score == pytest.approx(score)
            assert draft.probs is None
            block = chance.choices(range(3), k=chance.randrange(1, 4))
            drafter.commit(state, block, NO_SCORES, range(len(block)))
            text += block
        drafter.end(state)
        written.append([*prompt[-4:], *text[len(prompt) :]])


@pytest.mark.parametrize("seed", range(15))
def test_with_nodes_to_spare_the_likeliest_continuations_make_a_tree(seed: int) -> None:
    """Each node's chance is the product of shares on its way, and no likelier node of a match was left out."""
    chance = random.Random(seed)
    text = chance.choices(range(3), k=30)
    drafter = Suffix(factor=8, longest=4, global_tokens=0)
    budget = Budget(3, 9)
    draft = propose(drafter, drafter.begin(text, {}), budget)
    counted = Counted([text], 4, doubt=1.7)
    tokens, parents = draft.tree.tokens.tolist(), draft.tree.parents.tolist()
    assert 1 < len(tokens) <= 10
    assert int(depths(draft.tree.parents).max()) <= 3
    assert len({(parent, token) for parent, token in zip(parents, tokens, strict=True)}) == len(tokens), "no twins"
    best = max(_tree_score(counted, tuple(text[-length:]), budget, 8 * length) for length in range(1, 5))
    assert draft.score == pytest.approx(best)


def _tree_score(counted: Counted, context: tuple[int, ...], budget: Budget, limit: int) -> float:
    """The sum of the highest chances of all continuations of a match."""
    if context not in counted.after:
        return 0.0
    chances, open_ = [], [(context, 1.0, 0)]
    while open_:
        at, before, depth = open_.pop()
        usable = counted.usable(at[-counted.longest :])
        for token, share in counted.chances(usable).items() if usable and depth < budget.depth else ():
            if before * share >= 0.1:
                chances.append(before * share)
                open_.append(((*usable, token), before * share, depth + 1))
    return sum(sorted(chances, reverse=True)[: min(limit, budget.nodes)])


def test_what_one_request_wrote_is_drafted_for_the_next() -> None:
    """With the end of its prompt, so that even the beginning is found; and not where nothing is to be kept."""
    for keeps, drafted in ((GLOBAL_TOKENS, [5, 6, 7, 8]), (0, [])):
        drafter = Suffix(factor=4, global_tokens=keeps)
        first = drafter.begin([9, 3, 2, 1], {})
        drafter.commit(first, [5, 6, 7, 8, 0], NO_SCORES, range(5))
        second = drafter.begin([4, 3, 2, 1], {})
        assert propose(drafter, second, Budget(4)).tree.tokens.tolist() == [1]
        drafter.end(first)
        for state in (second, drafter.begin([4, 3, 2, 1], {})):  # one under way learns of it with its next token
            if state is second:
                drafter.commit(state, [1], NO_SCORES, range(1))
            else:
                assert propose(drafter, state, Budget(4)).tree.tokens.tolist() == [1, *drafted]


@pytest.mark.parametrize("seed", range(10))
def test_outputs_are_bounded_and_the_oldest_go_first(seed: int) -> None:
    """Never more than the bound; what is known is the newest texts as a whole; once full, about half the bound."""
    chance = random.Random(seed)
    bound = 40
    outputs = Outputs(lambda: Automaton(8), bound)
    added: list[list[int]] = []
    for number in range(60):
        text = [number * 100 + place for place in range(chance.randrange(1, bound // 10))]
        outputs.add(text)
        added.append(text)
        known = [bool(outputs.follow(None, text[:1], 1).width) for text in added]
        assert known == sorted(known), "a known text is older than one that is not"
        assert sum(len(text) for text, is_known in zip(added, known, strict=True) if is_known) == outputs.size <= bound
        if sum(map(len, added)) > bound:
            assert outputs.size > bound // 2 - 2 * max(map(len, added))
    outputs.add(range(10_000, 10_100))
    assert outputs.size == bound
    assert outputs.follow(None, [10_099], 1).width == 1
    assert outputs.follow(None, [10_000], 1).width == 0


def test_a_request_under_way_follows_into_the_heir() -> None:
    """When the oldest texts go, readers look themselves up anew; between two rounds they may still read the old."""
    outputs = Outputs(lambda: Automaton(8), 20)
    outputs.add([1, 2, 3, 4])
    place = outputs.follow(None, [9, 1, 2], 2)
    before = outputs.look(place, lambda automaton, state, width: automaton.path(state, width, 2))
    for number in range(4):
        outputs.add([*range(100 * number + 10, 100 * number + 20), 2, 7])
    assert before == outputs.look(place, lambda automaton, state, width: automaton.path(state, width, 2))
    place = outputs.follow(place, [9, 1, 2, 7], 1)
    assert place.width == 2, "of '2, 7' the heir knows both"


class Words:
    """Token n is the n-th letter."""

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        """Ids of a text."""
        return {"input_ids": [ord(letter) % 5 for letter in text]}


def setting(tokenizer: Any = None) -> Setting:
    """A setting on the toy target."""
    return Setting(ToyTarget(Table(5, 1)), tokenizer, lambda name: (ToyTarget(Table(5, 2)), None))


def test_a_corpus_is_drafted_from(tmp_path: Path) -> None:
    """A text as a whole, lines of JSON apart; named in the spec, commas and all."""
    path = tmp_path / "a,b=c.txt"
    path.write_text("abcd")
    drafter = make_drafter(f"suffix:factor=3,corpus={path}", setting(Words()))
    assert isinstance(drafter, Suffix)
    assert drafter.spec.endswith(f"global={GLOBAL_TOKENS},corpus={path}")
    a, b, c, d = Words()("abcd")["input_ids"]
    assert propose(drafter, drafter.begin([a, b], {}), Budget(2)).tree.tokens.tolist() == [b, c, d]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in ("ab", "cd")))
    drafter = make_drafter(f"suffix:corpus={lines}", setting(Words()))
    assert isinstance(drafter, Suffix)
    assert propose(drafter, drafter.begin([a, b], {}), Budget(2)).tree.tokens.tolist() == [b]
    assert propose(drafter, drafter.begin([b, c], {}), Budget(2)).tree.tokens.tolist() == [c, d]


def test_what_was_learned_can_be_forgotten(tmp_path: Path) -> None:
    """Finished texts go, the corpus stays; with no place for either there is nothing to learn."""
    (tmp_path / "some.txt").write_text("ab")
    drafter = make_drafter(f"suffix:corpus={tmp_path / 'some.txt'}", setting(Words()))
    a, b, c, d = Words()("abcd")["input_ids"]
    state = drafter.begin([c], {})
    drafter.commit(state, [d], Scores(torch.zeros(1, 1)), (0,))
    drafter.end(state)
    assert propose(drafter, drafter.begin([b, c], {}), Budget(1)).tree.tokens.tolist() == [c, d]
    drafter.forget()
    assert propose(drafter, drafter.begin([b, c], {}), Budget(1)).tree.tokens.tolist() == [c]
    assert propose(drafter, drafter.begin([a], {}), Budget(1)).tree.tokens.tolist() == [a, b]
    assert drafter.learns and not make_drafter("suffix:global=0", setting()).learns


@pytest.mark.parametrize(
    ("name", "content", "spec", "message"),
    [
        ("none.txt", None, "suffix:corpus={}", "no corpus"),
        ("empty.txt", b"", "suffix:corpus={}", "has no text"),
        ("binary.txt", b"\xff\xfe\xff", "suffix:corpus={}", "UTF-8"),
        ("some.jsonl", b'{"text": "a"}\n{"words": 1}', "suffix:corpus={}", "line 2"),
        ("long.txt", b"abc" * 10, "suffix:global=29,corpus={}", "30 tokens.*raise global"),
        ("some.txt", b"abc", "suffix:global=0,corpus={}", "3 tokens.*raise global"),
    ],
)
def test_a_corpus_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes | None, spec: str, message: str
) -> None:
    """Each is refused with the remedy, before any work."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadOption, match=message):
        make_drafter(spec.format(tmp_path / name), setting(Words()))


def test_a_corpus_needs_a_tokenizer(tmp_path: Path) -> None:
    """Ids alone do not say what a text is."""
    (tmp_path / "some.txt").write_text("abc")
    with pytest.raises(BadOption, match="needs a tokenizer"):
        make_drafter(f"suffix:corpus={tmp_path / 'some.txt'}", setting())
