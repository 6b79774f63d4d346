"""Prefix reuse: what is kept, what is found, and that outputs do not change by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loaded import Make

import outrider
from outrider.kv import KVCache
from outrider.prefix import Prefixes


def filled(tokens: list[int]) -> KVCache:
    """A cache of one row whose keys are the token ids."""
    cache = KVCache(1, len(tokens))
    new = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1).expand(1, 2, -1, 4).contiguous()
    cache.write(0, new, -new)
    cache.keep([range(len(tokens))])
    return cache


def held(cache: KVCache) -> list[int]:
    """The token ids that a cache's keys stand for."""
    keys, _ = cache.storage(0, 2, (4, 4), torch.empty(0))
    return [int(key) for key in keys[0, 0, : cache.lengths[0], 0]]


TEXT = list(range(100, 140))


def test_the_longest_beginning_is_found_and_copied() -> None:
    store = Prefixes(1 << 20)
    store.keep(TEXT[:20], filled(TEXT[:20]), 0)
    store.keep([*TEXT[:25], 7, 8], filled([*TEXT[:25], 7, 8]), 0)
    found = store.longest([*TEXT[:30], 1], 50)
    assert found is not None
    assert held(found.cache) == TEXT[:25]
    assert found.cache.capacity >= 50
    found.cache.crop(0, 3)  # whoever gets it may write into it
    again = store.longest([*TEXT[:30], 1], 50)
    assert again is not None and held(again.cache) == TEXT[:25]


def test_the_pending_token_is_never_known() -> None:
    store = Prefixes(1 << 20)
    store.keep(TEXT, filled(TEXT), 0)
    found = store.longest(TEXT, 50)
    assert found is not None and held(found.cache) == TEXT[:-1]


def test_short_and_foreign_beginnings_are_not_found() -> None:
    store = Prefixes(1 << 20)
    store.keep(TEXT, filled(TEXT), 0)
    assert store.longest([*TEXT[:10], *range(50)], 50) is None
    assert store.longest([1, *TEXT], 50) is None


def test_the_budget_drops_the_least_recently_used() -> None:
    one = filled(TEXT).nbytes
    store = Prefixes(2 * one)
    texts = [[first, *TEXT] for first in (1, 2, 3)]
    for text in texts[:2]:
        store.keep(text, filled(text), 0)
    store.longest([*texts[0], 9], 50)  # used, so the other goes
    store.keep(texts[2], filled(texts[2]), 0)
    assert store.nbytes <= 2 * one
    assert [store.longest([*text, 9], 50) is not None for text in texts] == [True, False, True]
    none = Prefixes(0)
    none.keep(TEXT, filled(TEXT), 0)
    assert none.longest([*TEXT, 1], 50) is None


def test_a_longer_text_replaces_its_own_beginning() -> None:
    store = Prefixes(1 << 20)
    store.keep(TEXT[:20], filled(TEXT[:20]), 0)
    before = store.nbytes
    store.keep(TEXT[:30], filled(TEXT[:30]), 0)
    assert store.nbytes == before  # both fit one block


def test_states_come_along_where_they_are_wanted() -> None:
    """Of the layers that are asked for; a text without them is not found then, and does not push out one with them."""
    store = Prefixes(1 << 20)
    states = {layer: torch.arange(20.0)[:, None] + layer for layer in (3, 7)}
    store.keep(TEXT[:20], filled(TEXT[:20]), 0, states)
    before = store.nbytes
    assert before == filled(TEXT[:20]).nbytes + 2 * 20 * 4
    store.keep(TEXT[:30], filled(TEXT[:30]), 0)
    found = store.longest([*TEXT, 1], 50, (7,))
    assert found is not None and held(found.cache) == TEXT[:20]
    assert list(found.states) == [7] and found.states[7].equal(states[7])
    assert store.longest([*TEXT, 1], 50, (7, 9)) is None
    plain = store.longest([*TEXT, 1], 50)
    assert plain is not None and held(plain.cache) == TEXT[:30] and not plain.states
    part = store.longest(TEXT[:19], 50, (3, 7))
    assert part is not None and part.states[3].equal(states[3][:18])


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_a_drafter_with_taps_reuses_too(method: str, demo_folder: Path) -> None:
    """The next turn has the drafts, and so the rounds, of one whose whole prompt was read."""
    fresh = outrider.load(str(demo_folder), method, policy="fixed:3", prefix_memory=0)
    llm = fresh.using(method)
    llm._prefixes = Prefixes(1 << 28)
    turn = [{"role": "user", "content": "Name three rivers of Europe and one lake."}]
    first = llm.generate(turn, max_new_tokens=24)
    turn += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And three mountains?"}]
    second, expected = llm.generate(turn, max_new_tokens=24), fresh.generate(turn, max_new_tokens=24)
    assert second.reused > len(first.prompt_ids) and expected.reused == 0
    assert second.token_ids == expected.token_ids
    assert [r.tree.tokens.tolist() for r in second.rounds] == [r.tree.tokens.tolist() for r in expected.rounds]
    third = llm.generate(turn, max_new_tokens=24)  # all of it is known
    assert third.reused == len(third.prompt_ids) - 1 and third.token_ids == second.token_ids


def test_a_second_turn_reuses_the_first_and_writes_the_same(demo: Make) -> None:
    """Bit for bit on the lean path: what decoding wrote into the cache is what prefill would have written."""
    llm, fresh = demo("lookup", 5).using(), demo("none").using()
    llm._prefixes, fresh._prefixes = Prefixes(1 << 28), Prefixes(0)  # not what other tests have left
    turn = [{"role": "user", "content": "Name three rivers of Europe and one lake."}]
    first = llm.generate(turn, max_new_tokens=24)
    assert first.reused == 0
    turn += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And three mountains?"}]
    second, expected = llm.generate(turn, max_new_tokens=24), fresh.generate(turn, max_new_tokens=24)
    assert second.reused > len(first.prompt_ids)
    assert expected.reused == 0
    assert second.token_ids == expected.token_ids
