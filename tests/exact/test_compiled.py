"""The compiled path: fixed shapes change nothing. Run on the CPU, where a GPU's graphs cannot be had."""

from __future__ import annotations

import pytest
import torch
from families import make

import outrider
from outrider.compiled import CompiledTarget
from outrider.target import TransformersTarget
from outrider.types import Tree

# Inductor warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::FutureWarning:torch")


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt2"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_trees_and_ragged_batches_equal_the_modules(family: str, backend: str) -> None:
    """Logits and states of a tree and a chain of other lengths, in buckets, after prompts of other lengths."""
    source = TransformersTarget(make(family))
    compiled = CompiledTarget(source, backend=backend)
    torch.manual_seed(1)
    ids = torch.randint(2, 100, (40,)).tolist()
    trees = [Tree(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([-1, 0, 0, 1, 2])), Tree.chain(ids[20:22])]
    results = []
    for target in (source, compiled):
        cache = target.new_cache(2)
        target.forward([Tree.chain(ids[:30]), Tree.chain(ids[:20])], cache)
        cache.keep([range(30), range(20)])
        for _ in range(2):
            scores = target.forward(trees, cache, taps=(1, 3) if family != "gpt2" else (1,))
            cache.keep([(0, 1, 3), (0, 1)])
        results.append(scores)
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)
        for layer, states in expected.hidden.items():
            torch.testing.assert_close(got.hidden[layer], states, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_generating_with_compile() -> None:
    """`compile=True` from the outside: the same ids as the modules."""
    model = make("llama")
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9]]
    compiled = outrider.load(model, "lookup", compile=True)
    assert compiled.configuration["build"] == "compiled"
    expected = outrider.load(model, "none", fast=False).generate(prompts, max_new_tokens=20)
    got = compiled.generate(prompts, max_new_tokens=20)
    assert [output.token_ids for output in got] == [output.token_ids for output in expected]
