"""The same seed gives the same tokens: with any drafter, draft length and company, whatever acts on the logits.

On the real demo model. What plain decoding writes alone is the expectation; lookup, and the target drafting for itself,
have to write the same, alone and in a batch of three.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from comparing import transformers_ids
from transformers import LogitsProcessor, LogitsProcessorList, NoRepeatNGramLogitsProcessor

from outrider import Sampling

NEW = 22
PROMPTS = [
    "Once upon a time there was a fox who",
    "red green blue, red green blue, red",
    [{"role": "user", "content": "Tell me something about the sea."}],
]
SAMPLINGS = {
    "temperature": Sampling(temperature=0.8, seed=7),
    "truncated": Sampling(temperature=0.8, top_p=0.9, top_k=50, min_p=0.01, seed=11),
    "penalties": Sampling(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2, top_p=0.95, seed=13
    ),
}
PARTS = [("lookup", 1), ("lookup", 5), ("lookup", 20), ("model", 1), ("model", 5), ("model", 20)]
# By default every sampling meets two of them and every one of them one sampling; the rest of the product is slow.
PAIRS = [
    pytest.param(name, part, id=f"{name}-{part[0]}-{part[1]}", marks=[pytest.mark.slow] * ((row + column) % 3 != 0))
    for row, name in enumerate(SAMPLINGS)
    for column, part in enumerate(PARTS)
]


class Alternating(LogitsProcessor):
    """Even ids at even places, odd ids at odd places: wrong at once if a node is shown another history than its own."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """See `LogitsProcessor`."""
        assert input_ids.shape[0] == scores.shape[0] == 1
        parity = torch.arange(scores.shape[-1]) % 2
        return scores.masked_fill(parity != input_ids.shape[1] % 2, -torch.inf)


@pytest.fixture(scope="module")
def plain(demo: Any) -> Callable[[str], list[list[int]]]:
    """What plain decoding writes after each prompt alone, computed once for each sampling."""
    known: dict[str, list[list[int]]] = {}

    def look(name: str) -> list[list[int]]:
        if name not in known:
            options = {"sampling": SAMPLINGS[name], "max_new_tokens": NEW}
            known[name] = [demo("none").generate(prompt, **options).token_ids for prompt in PROMPTS]
        return known[name]

    return look


@pytest.mark.parametrize("name", SAMPLINGS)
def test_company_does_not_matter(demo: Any, plain: Any, name: str) -> None:
    """Plain decoding in a batch of three writes what it writes alone, and reports the seed it was given."""
    outputs = demo("none").generate(PROMPTS, sampling=SAMPLINGS[name], max_new_tokens=NEW)
    assert [output.token_ids for output in outputs] == plain(name)
    assert {output.seed for output in outputs} == {SAMPLINGS[name].seed}


@pytest.mark.parametrize(("name", "part"), PAIRS)
def test_drafts_do_not_matter(demo: Any, plain: Any, name: str, part: tuple[str, int]) -> None:
    """Speculation writes what plain decoding writes, three together and, in turn, one alone."""
    llm = demo(*part)
    turn = PARTS.index(part) % len(PROMPTS)
    together = llm.generate(PROMPTS, sampling=SAMPLINGS[name], max_new_tokens=NEW)
    alone = llm.generate(PROMPTS[turn], sampling=SAMPLINGS[name], max_new_tokens=NEW)
    assert [output.token_ids for output in together] == plain(name)
    assert alone.token_ids == plain(name)[turn]
    if part[0] == "model":  # its draws share the target's noise, so blocks are accepted and this tests something
        assert all(output.stats.accepted >= NEW // 2 - 1 for output in together)


def test_seeds_do_matter(demo: Any, plain: Any) -> None:
    """Another seed gives other text: the noise is really keyed by it."""
    other = Sampling(temperature=0.8, seed=8)
    outputs = demo("lookup", 5).generate(PROMPTS, sampling=other, max_new_tokens=NEW)
    assert all(output.token_ids != before for output, before in zip(outputs, plain("temperature"), strict=True))


def test_unseeded_requests_report_their_seed(demo: Any) -> None:
    """Without a seed each request draws its own, and running it again with the reported seed gives the same tokens."""
    free = Sampling(temperature=0.8, top_p=0.95)
    twins = demo("lookup", 5).generate([PROMPTS[0]] * 3, sampling=free, max_new_tokens=NEW)
    assert len({output.seed for output in twins}) == 3
    assert len({tuple(output.token_ids) for output in twins}) == 3
    for part, twin in zip((("none", 1), ("lookup", 20), ("model", 5)), twins, strict=True):
        again = Sampling(temperature=0.8, top_p=0.95, seed=twin.seed)
        assert demo(*part).generate(PROMPTS[0], sampling=again, max_new_tokens=NEW).token_ids == twin.token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_own_processors(demo: Any, temperature: float) -> None:
    """Processors see each node's own history: their rule holds in the output, and drafts change nothing."""
    sampling = Sampling(temperature=temperature, seed=3, processors=(NoRepeatNGramLogitsProcessor(2), Alternating()))
    expected = demo("none").generate(PROMPTS, sampling=sampling, max_new_tokens=NEW // 2)
    for output in expected:
        ids = output.token_ids
        assert [(len(output.prompt_ids) + place) % 2 for place in range(len(ids))] == [token % 2 for token in ids]
        assert len(set(pairwise(ids))) == len(ids) - 1
    for part in (("lookup", 5), ("model", 5)):
        outputs = demo(*part).generate(PROMPTS, sampling=sampling, max_new_tokens=NEW // 2)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]


def test_processors_greedily_as_transformers(demo: Any, demo_model: Any, demo_tokenizer: Any) -> None:
    """With the same processors Transformers' own `generate` writes the same."""
    processors = (NoRepeatNGramLogitsProcessor(2), Alternating())
    ids = demo_tokenizer(PROMPTS[1])["input_ids"]
    expected = transformers_ids(demo_model, ids, NEW, LogitsProcessorList(processors))
    got = demo("lookup", 5).generate(ids, sampling=Sampling(processors=processors), max_new_tokens=NEW)
    assert got.token_ids == expected
    assert expected != transformers_ids(demo_model, ids, NEW)
