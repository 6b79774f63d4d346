"""The target's law against Transformers' own processors, and on trees against the same path run alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider import tree as trees
from outrider.errors import BadOption
from outrider.sampling import History, Sampling
from outrider.types import Tree

VOCABULARY = 60
PROMPT = [3, 3, 8, 21, 50]
OUTPUT = [8, 40, 40, 40]
HISTORY = History([*PROMPT, *OUTPUT], len(PROMPT), eos=(2, 9))
BRANCHED = Tree(torch.tensor([40, 7, 8, 7, 40, 59, 3]), torch.tensor([-1, 0, 0, 1, 1, 2, 5]))


def logits_for(nodes: int, seed: int = 0) -> torch.Tensor:
    """Logits as models give them, negative ones among them."""
    return torch.randn(nodes, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def transformers_law(logits: torch.Tensor, ids: Sequence[int], processors: list[Any]) -> torch.Tensor:
    """[V] what Transformers' `sample` would draw from."""
    return LogitsProcessorList(processors)(torch.tensor([list(ids)]), logits[None].clone()).softmax(-1)[0]


SINGLE = {
    "plain": (Sampling(temperature=1.0), []),
    "temperature": (Sampling(temperature=0.6), [TemperatureLogitsWarper(0.6)]),
    "top_k": (Sampling(temperature=1.0, top_k=7), [TopKLogitsWarper(7)]),
    "top_k of one": (Sampling(temperature=1.0, top_k=1), [TopKLogitsWarper(1)]),
    "top_k of all": (Sampling(temperature=1.0, top_k=VOCABULARY + 5), []),
    "top_p": (Sampling(temperature=1.0, top_p=0.8), [TopPLogitsWarper(0.8)]),
    "small top_p": (Sampling(temperature=1.0, top_p=1e-6), [TopPLogitsWarper(1e-6)]),
    "min_p": (Sampling(temperature=1.0, min_p=0.1), [MinPLogitsWarper(0.1)]),
    "full min_p": (Sampling(temperature=1.0, min_p=1.0), [MinPLogitsWarper(1.0)]),
    "repetition": (Sampling(temperature=1.0, repetition_penalty=1.7), [RepetitionPenaltyLogitsProcessor(1.7)]),
    "repetition wanted": (Sampling(temperature=1.0, repetition_penalty=0.5), [RepetitionPenaltyLogitsProcessor(0.5)]),
    "bias": (
        Sampling(temperature=1.0, logit_bias={4: 2.5, 8: -3.0}),
        [SequenceBiasLogitsProcessor([[[4], 2.5], [[8], -3.0]])],
    ),
    "all truncations": (
        Sampling(temperature=1.4, top_k=20, top_p=0.9, min_p=0.05),
        [TemperatureLogitsWarper(1.4), TopKLogitsWarper(20), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
    ),
    "penalty and truncations": (
        Sampling(temperature=0.8, top_k=9, top_p=0.7, repetition_penalty=1.3),
        [
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(9),
            TopPLogitsWarper(0.7),
        ],
    ),
}


@pytest.mark.parametrize(("sampling", "processors"), SINGLE.values(), ids=SINGLE)
def test_one_node_equals_transformers(sampling: Sampling, processors: list[Any]) -> None:
    """One token at a time, on several random rows."""
    for seed in range(6):
        logits = logits_for(1, seed)
        law = sampling.law(logits, Tree.chain(HISTORY.tokens[-1:]), HISTORY).probs[0]
        torch.testing.assert_close(law, transformers_law(logits[0], HISTORY.tokens, processors), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("sampling", "processors"), SINGLE.values(), ids=SINGLE)
def test_every_node_of_a_tree_equals_transformers(sampling: Sampling, processors: list[Any]) -> None:
    """Each node with the history that its own path gives it, siblings and cousins unseen."""
    logits = logits_for(len(BRANCHED))
    law = sampling.law(logits, BRANCHED, HISTORY).probs
    for node in range(len(BRANCHED)):
        path = trees.path_to(BRANCHED.parents, node)[1:]
        ids = [*HISTORY.tokens, *BRANCHED.tokens[path].tolist()]
        expected = transformers_law(logits[node], ids, processors)
        torch.testing.assert_close(law[node], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("needed", [0, 3, 4, 5, 6, 7, 20])
def test_min_new_tokens_equals_transformers(needed: int) -> None:
    """Counted at each node: four tokens are written, and each ancestor in the draft is one more."""
    logits = logits_for(len(BRANCHED))
    law = Sampling(temperature=1.0, min_new_tokens=needed).law(logits, BRANCHED, HISTORY).probs
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), needed, list(HISTORY.eos), device="cpu")
    for node, depth in enumerate(trees.depths(BRANCHED.parents).tolist()):
        ids = [*HISTORY.tokens, *[0] * depth]
        torch.testing.assert_close(law[node], transformers_law(logits[node], ids, [processor] if needed else []))
        assert bool((law[node, list(HISTORY.eos)] == 0).all()) == (len(OUTPUT) + depth < needed)


def test_presence_and_frequency_penalties_by_hand() -> None:
    """OpenAI's definition: of the output alone, not the prompt; once, and once per occurrence; drafts count."""
    tree = Tree.chain([40, 7, 40])
    logits = torch.zeros(3, VOCABULARY)
    law = Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25).law(logits, tree, HISTORY).probs
    for node, counts in enumerate(({8: 1, 40: 3}, {8: 1, 40: 3, 7: 1}, {8: 1, 40: 4, 7: 1})):
        scores = torch.zeros(VOCABULARY)
        for token, count in counts.items():
            scores[token] = -0.5 - 0.25 * count
        torch.testing.assert_close(law[node], scores.softmax(-1))


EVERYTHING = Sampling(
    temperature=0.9,
    top_k=30,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={1: 1.0},
    min_new_tokens=6,
)


@pytest.mark.parametrize("sampling", [EVERYTHING, Sampling(repetition_penalty=1.5, presence_penalty=2.0)])
def test_a_path_in_a_tree_equals_the_path_alone(sampling: Sampling) -> None:
    """Everything at once, sampled and greedy: a node knows its ancestors and nobody else."""
    logits = logits_for(len(BRANCHED))
    law = sampling.law(logits, BRANCHED, HISTORY).probs
    for node in range(len(BRANCHED)):
        path = trees.path_to(BRANCHED.parents, node)
        alone = sampling.law(logits[path], Tree.chain(BRANCHED.tokens[path].tolist()), HISTORY).probs
        torch.testing.assert_close(alone[-1], law[node], atol=0, rtol=0)
        committed = [*HISTORY.tokens, *BRANCHED.tokens[path[1:]].tolist()]
        step = sampling.law(
            logits[node][None], Tree.chain(committed[-1:]), History(committed, len(PROMPT), HISTORY.eos)
        )
        torch.testing.assert_close(step.probs[0], law[node], atol=1e-7, rtol=1e-5)


def test_the_callers_processor_sees_each_nodes_own_text() -> None:
    """Ids are prompt, output and the node's path; scores are one row; what it returns counts."""
    seen: list[list[int]] = []

    def only_token_five(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert scores.shape == (1, VOCABULARY)
        seen.append(ids[0].tolist())
        return torch.full_like(scores, -math.inf).index_fill(1, torch.tensor([5]), 0.0)

    sampling = Sampling(temperature=1.0, processors=(only_token_five,))
    law = sampling.law(logits_for(len(BRANCHED)), BRANCHED, HISTORY).probs
    tails = [[], [7], [8], [7, 7], [7, 40], [8, 59], [8, 59, 3]]
    assert seen == [[*HISTORY.tokens, *tail] for tail in tails]
    assert bool((law[:, 5] == 1).all())


def test_the_callers_processor_comes_after_penalties_and_before_temperature() -> None:
    """The scores that it gets are penalised and not yet divided."""
    got: list[torch.Tensor] = []

    def listen(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        got.append(scores.clone())
        return scores

    sampling = Sampling(temperature=0.5, top_k=3, logit_bias={4: 2.0}, processors=(listen,))
    logits = logits_for(1)
    sampling.law(logits, Tree.chain([40]), HISTORY)
    expected = logits.clone()
    expected[0, 4] += 2.0
    torch.testing.assert_close(got[0], expected)


def test_the_drafter_does_not_inherit_the_callers_processors() -> None:
    """They may keep state and belong to the target; everything else goes over."""
    sampling = Sampling(temperature=0.7, top_k=5, processors=(lambda ids, scores: scores,))
    assert sampling.for_draft() == Sampling(temperature=0.7, top_k=5)
    assert Sampling(temperature=0.7).for_draft() == Sampling(temperature=0.7)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=2.0), EVERYTHING])
def test_logits_stay_as_they_are(sampling: Sampling) -> None:
    """The drafter sees the same scores afterwards."""
    logits = logits_for(len(BRANCHED))
    before = logits.clone()
    _ = sampling.law(logits, BRANCHED, HISTORY).probs
    assert torch.equal(logits, before)


def test_greedy_is_the_one_hot_limit() -> None:
    """Zero temperature takes the likeliest token, as a law and as draws, without touching the noise."""
    logits = logits_for(4)
    law = Sampling().law(logits, Tree.chain([40, 1, 2, 3]), HISTORY)
    choices = logits.argmax(-1).tolist()
    assert law.draws(None, [0, 1, 2, 3]) == choices  # type: ignore[arg-type]
    assert torch.equal(law.probs, torch.nn.functional.one_hot(torch.tensor(choices), VOCABULARY).float())
    cold = Sampling(temperature=1e-5).law(logits, Tree.chain([40, 1, 2, 3]), HISTORY).probs
    torch.testing.assert_close(cold, law.probs)


def test_ties_at_the_border_are_kept() -> None:
    """Top-k and top-p cannot tell equal tokens apart, and the order of ids must not decide."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    tree = Tree.chain([0])
    history = History([0], 1)
    for sampling in (Sampling(temperature=1.0, top_k=2), Sampling(temperature=1.0, top_p=0.55)):
        assert sampling.law(logits, tree, history).probs[0].nonzero().flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_worked_on_in_float32(dtype: torch.dtype) -> None:
    """The law of rounded logits, not a rounded law."""
    logits = logits_for(3).to(dtype)
    tree = Tree.chain([40, 1, 2])
    for sampling in (Sampling(temperature=0.7), EVERYTHING):
        law = sampling.law(logits, tree, HISTORY).probs
        assert law.dtype == torch.float32
        assert torch.equal(law, sampling.law(logits.float(), tree, HISTORY).probs)
        torch.testing.assert_close(law.sum(-1), torch.ones(3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("min_new_tokens", -1),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    """Before any work, naming the option and what it was."""
    with pytest.raises(BadOption, match=rf"^{name} is {value}: it has to be "):
        Sampling(**{name: value})


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_bias_for_a_token_that_is_not_there(token: int) -> None:
    """A negative id would silently count from the end."""
    with pytest.raises(BadOption, match=f"token {token}"):
        Sampling(temperature=1.0, logit_bias={token: 1.0}).law(logits_for(1), Tree.chain([40]), HISTORY)
