"""The drafters themselves: what lookup finds against a plain search, and what a draft model keeps of its cache."""

from __future__ import annotations

import random

import pytest
import torch
from toy import Table, ToyTarget

from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter, shared_ids
from outrider.errors import VocabularyMismatch
from outrider.noise import SeededNoise
from outrider.sampling import Sampling
from outrider.types import Budget, Draft, Scores

NO_SCORES = Scores(torch.zeros(0, 5))


def found(ids: list[int], depth: int, longest: int) -> list[int]:
    """The definition: what followed the longest earlier match of the end, for at most twice its length.

    Of equally long ones, the most recent.
    """
    for length in range(min(longest, len(ids) - 1), 0, -1):
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start : start + length] == ids[-length:]:
                return ids[start + length : start + length + min(depth, 2 * length)]
    return []


@pytest.mark.parametrize("seed", range(25))
def test_lookup_finds_what_a_plain_search_finds(seed: int) -> None:
    """On random texts that grow by random blocks, with matches that overlap their own end."""
    chance = random.Random(seed)
    longest = chance.choice([1, 3, 16])
    drafter = Lookup(longest)
    text = chance.choices(range(3), k=chance.randrange(1, 5))
    state = drafter.begin(text, {})
    for _ in range(25):
        depth = chance.randrange(0, 6)
        (draft,) = drafter.propose([state], [Budget(depth)], [Sampling()], [SeededNoise.for_draft(0, 0, True)])
        assert draft.tree.tokens.tolist() == [text[-1], *found(text, depth, longest)]
        assert draft.probs is None
        block = chance.choices(range(3), k=chance.randrange(1, 4))
        drafter.commit(state, block, NO_SCORES, range(len(block)))
        text += block


def propose(drafter: ModelDrafter, state: object, depth: int, sampling: Sampling) -> Draft:
    """One draft for one row."""
    (draft,) = drafter.propose([state], [Budget(depth)], [sampling], [SeededNoise.for_draft(0, 0, False)])  # type: ignore[list-item]
    return draft


@pytest.mark.parametrize("committed", [[0], [1, 2, 3], [4, 4, 4, 4, 4, 4, 4]])
def test_a_draft_model_keeps_only_what_was_committed(committed: list[int]) -> None:
    """Whatever is committed, the draft's own tokens or quite others, the next draft is that of a fresh state."""
    table = Table(5, 31)
    drafter, greedy = ModelDrafter(ToyTarget(table), 5), Sampling()
    state = drafter.begin((0, 1), {})
    drafted = propose(drafter, state, 5, greedy).tree.tokens[1:].tolist()
    for agreed in range(5):
        tokens = [*drafted[:agreed], *committed]
        drafter.commit(state, tokens, NO_SCORES, range(len(tokens)))
        fresh = drafter.begin(tuple(state.tokens), {})
        draft = propose(drafter, state, 5, greedy)
        assert torch.equal(draft.tree.tokens, propose(drafter, fresh, 5, greedy).tree.tokens)
        drafted = draft.tree.tokens[1:].tolist()


def test_a_sampled_draft_brings_the_law_it_was_drawn_from() -> None:
    """Row i is the draft model's law after the tokens before; a greedy draft is a point mass and brings none."""
    table = Table(5, 32)
    drafter = ModelDrafter(ToyTarget(table), vocabulary=7)
    state = drafter.begin((0, 1), {})
    draft = propose(drafter, state, 4, Sampling(temperature=1.0))
    assert draft.probs is not None
    tokens = draft.tree.tokens[1:].tolist()
    for place, law in enumerate(draft.probs):
        expected = torch.cat([table.law((0, 1, *tokens[:place])).float(), torch.zeros(2)])
        torch.testing.assert_close(law, expected)
    assert propose(drafter, drafter.begin((0, 1), {}), 4, Sampling()).probs is None


class Doubts:
    """Stops behind the n-th token of a row, and remembers what it was shown."""

    def __init__(self, end: int) -> None:
        self._end = end
        self.seen: list[tuple[torch.Tensor, int]] = []

    def __call__(self, law: torch.Tensor, token: int) -> bool:
        """See `Budget.stop`."""
        self.seen.append((law, token))
        return len(self.seen) == self._end


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_ends_where_it_is_told_to(temperature: float) -> None:
    """The token in doubt is kept, row by row; the draft is otherwise the one that would have been, and so is the next.

    What is shown is the law that the token was drawn from; for a greedy choice the one at temperature 1.
    """
    table, sampling = Table(5, 34), Sampling(temperature=temperature, top_k=2 if temperature == 0 else 0)
    drafter = ModelDrafter(ToyTarget(table), 5)
    prompts, ends = [(0, 1), (2,), (3, 1, 4)], (3, 1, 99)
    whole = [propose(drafter, drafter.begin(prompt, {}), 6, sampling).tree.tokens.tolist() for prompt in prompts]
    states = [drafter.begin(prompt, {}) for prompt in prompts]
    doubts = [Doubts(end) for end in ends]
    budgets = [Budget(6, stop=doubt) for doubt in doubts]
    noises = [SeededNoise.for_draft(0, 0, False) for _ in prompts]
    drafts = drafter.propose(states, budgets, [sampling] * 3, noises)  # type: ignore[arg-type]
    for prompt, end, draft, full, doubt in zip(prompts, ends, drafts, whole, doubts, strict=True):
        assert draft.tree.tokens.tolist() == full[: min(end, 6) + 1]
        assert [token for _, token in doubt.seen] == full[1 : min(end, 5) + 1]  # the budget ends behind the sixth
        for place, (law, _) in enumerate(doubt.seen):
            torch.testing.assert_close(law, table.law((*prompt, *full[1 : place + 1])).float())
        assert draft.probs is None if temperature == 0 else len(draft.probs) == min(end, 6)  # type: ignore[arg-type]
    for state, full in zip(states, whole, strict=True):
        drafter.commit(state, full[1:3], NO_SCORES, range(2))
        fresh = drafter.begin(tuple(state.tokens), {})
        again = propose(drafter, state, 4, sampling).tree.tokens
        assert torch.equal(again, propose(drafter, fresh, 4, sampling).tree.tokens)


def test_ids_that_are_not_shared_are_never_drafted() -> None:
    """They are masked from q, which is normalised without them."""
    shared = torch.tensor([True, True, False, True, False])
    drafter = ModelDrafter(ToyTarget(Table(5, 33)), 5, shared)
    state = drafter.begin((0, 1), {})
    draft = propose(drafter, state, 20, Sampling(temperature=3.0))
    assert draft.probs is not None
    assert bool((draft.probs[:, ~shared] == 0).all())
    torch.testing.assert_close(draft.probs.sum(-1), torch.ones(20))
    assert set(draft.tree.tokens[1:].tolist()) <= {0, 1, 3}


def test_vocabularies_are_compared_token_by_token() -> None:
    """Padding pairs; the same size with other tokens does not; single strangers are masked."""
    target = {f"t{index}": index for index in range(100)}
    assert shared_ids(target, target, 100) is None
    padded = shared_ids(target, target, 104)
    assert padded is not None
    assert padded.tolist() == [True] * 100 + [False] * 4
    stranger = shared_ids(target, {**target, "t5": 6, "t6": 5}, 100)
    assert stranger is not None
    assert (~stranger).nonzero().flatten().tolist() == [5, 6]
    with pytest.raises(VocabularyMismatch, match="0%"):
        shared_ids(target, {f"t{index}": 99 - index for index in range(100)}, 100)
    with pytest.raises(VocabularyMismatch, match="89%"):
        shared_ids(target, {f"t{index}": index + 100 * (index >= 89) for index in range(100)}, 200)


@pytest.mark.parametrize("allowed", [[3, 3, 3, 100], [0, 0, 100], [100], [1, 0, 7, 7]])
def test_a_text_that_is_read_in_parts(allowed: list[int]) -> None:
    """No more of it than a budget allows, and no draft before its end, also of what was written meanwhile; then the
    draft is that of a text read at once."""
    table, text, drafts = Table(5, 35), [0, 1, 2, 3, 4, 0, 1, 2], []
    drafter = ModelDrafter(ToyTarget(table), 5)
    state, noise = drafter.begin(text, {}), SeededNoise.for_draft(0, 0, False)
    read = 0
    for most in allowed:
        for _ in range(2):  # asking twice changes nothing but what is read
            (draft,) = drafter.propose([state], [Budget(3, reading=most)], [Sampling()], [noise])
            read += draft.read
            assert draft.read <= most
            assert (len(draft.tree) > 1) == (read == len(text) - 1)
            if read == len(text) - 1:
                drafts.append(draft.tree.tokens.tolist())
                break
        else:
            text.append(3)
            drafter.commit(state, [3], Scores(torch.zeros(1, 5)), (0,))
            continue
        break
    fresh = propose(drafter, drafter.begin(text, {}), 3, Sampling())
    assert drafts == [fresh.tree.tokens.tolist()]
    assert fresh.read == len(text) - 1
