"""More families, at random and in depth: trees at every node, tapped states, the end of learned positions, mixed modes.

Beside `test_families.py`, on the models of `families.py`: windows far shorter than the texts, mixtures of experts, keys
and values of different widths, learned positions with an offset. Everything is asked of Transformers' modules under our
attention, and of what `load` makes of them by default: the lean decoder, or packed linears.
"""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch
from comparing import assert_equal, transformers_ids

import outrider
from outrider import Sampling, Tree
from outrider.drafters import Drafter
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.policy import Fixed
from outrider.row import Request, Row
from outrider.target import prefill
from outrider.tree import path_to
from outrider.verify import make_verifier

NEW = 30
LENGTHS = (1, 40, 17)  # a row that begins with an empty cache comes first
BOTH = pytest.mark.parametrize("fast", [True, False], ids=["fast", "modules"])
ALL = pytest.mark.parametrize("name", families.NAMES)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """One model per family for all tests here, which must leave it as it is."""
    return {name: families.make(name) for name in families.NAMES}


def served(model: Any, fast: bool) -> Any:
    """A model as a target: by default the lean decoder or packed linears, otherwise Transformers' modules."""
    target = outrider.load(model, "none", fast=fast).target
    assert (target.build == "modules") is not fast
    return target


def write(
    target: Any, drafter: Drafter, k: int, prompts: list[list[int]], new: int = NEW, chunk: int = 512
) -> list[Row]:
    """Serve prompts together, greedily."""
    engine = Engine(target, drafter, make_verifier("match"), lambda: Fixed(k), None, chunk)
    rows: dict[int, Row] = {}
    for row, _ in engine.run([Request(tuple(prompt), Sampling(), 0, new) for prompt in prompts]):
        rows[row.index] = row
    return [rows[index] for index in range(len(prompts))]


def parts(target: Any) -> list[tuple[str, Drafter, int]]:
    """Drafters and draft lengths; the last accepts blocks of 20 since it is the target itself."""
    return [
        ("none", NoDrafter(), 1),
        ("lookup", Lookup(), 5),
        ("model", ModelDrafter(target, target.vocabulary), 20),
    ]


@BOTH
@ALL
def test_greedy_equals_transformers(models: Any, name: str, fast: bool) -> None:
    """In a ragged batch, one row of it beginning with nothing, with the prompts in one piece and in pieces of four."""
    model, prompts = models[name], families.prompts(*LENGTHS)
    target = served(model, fast)
    expected = [transformers_ids(model, prompt, NEW) for prompt in prompts]
    assert all(len(set(ids)) > 3 for ids in expected), "these texts stand still, and nothing can go wrong in them"
    for label, drafter, k in parts(target):
        for chunk in (512, 4):
            rows = write(target, drafter, k, prompts, chunk=chunk)
            for row, prompt, ids in zip(rows, prompts, expected, strict=True):
                assert_equal(model, prompt, ids, row.output, f"{name} with {label}, pieces of {chunk}")
                assert label != "model" or row.rounds == 2  # 20 drafts and a bonus, then the rest


@torch.no_grad()
def straight(model: Any, ids: list[int]) -> Any:
    """The model's own plain pass over a whole text, without a cache: logits [V] and hidden states at its end."""
    tensor = torch.tensor([ids])
    out = model(tensor, attention_mask=torch.ones_like(tensor), use_cache=False, output_hidden_states=True)
    return out.logits[0, -1], [states[0, -1] for states in out.hidden_states]


def check_trees(model: Any, texts: list[list[int]], trees: list[Tree], scores: Any, taps: tuple[int, ...]) -> None:
    """Every node of every tree against the plain pass over its own path."""
    for text, tree, score in zip(texts, trees, scores, strict=True):
        for node in range(len(tree)):
            path = path_to(tree.parents, node)
            logits, hidden = straight(model, [*text, *tree.tokens[path].tolist()])
            torch.testing.assert_close(score.logits[node], logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
            for layer in taps:
                torch.testing.assert_close(score.hidden[layer][node], hidden[layer], rtol=1e-4, atol=1e-3)


@BOTH
@ALL
def test_random_trees(models: Any, name: str, fast: bool) -> None:
    """Logits and states at every node of random trees, in a ragged batch, and again after keeping paths with gaps."""
    model = models[name]
    target = served(model, fast)
    texts = families.prompts(1, 21, 12, seed=8)
    taps = (0, 2, int(target.config.num_hidden_layers))
    cache = target.new_cache(len(texts))
    target.forward([Tree.chain(text) for text in texts], cache)
    cache.keep([range(len(text)) for text in texts])
    for turn in range(2):
        shapes = [families.random_tree(nodes, seed=10 * turn + nodes) for nodes in (12, 5, 9)]
        trees = [Tree(torch.tensor(tokens), torch.tensor(parents)) for tokens, parents in shapes]
        check_trees(model, texts, trees, target.forward(trees, cache, taps=taps), taps)
        paths = [max((path_to(tree.parents, node) for node in range(len(tree))), key=len) for tree in trees]
        assert any(path != list(range(len(path))) for path in paths)
        cache.keep(paths)
        for text, tree, path in zip(texts, trees, paths, strict=True):
            text.extend(tree.tokens[path].tolist())
        assert cache.lengths == [len(text) for text in texts]


@BOTH
def test_prefill_states(models: Any, fast: bool) -> None:
    """Prefill in pieces gives the tapped states of the whole prompt, as Transformers numbers them."""
    model, (prompt,) = models["gemma3"], families.prompts(19)
    target = served(model, fast)
    states = prefill(target, prompt, target.new_cache(), taps=(1, 3), chunk=4)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        hidden = model(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
    for layer in (1, 3):
        torch.testing.assert_close(states[layer], hidden[layer][0], rtol=1e-4, atol=1e-3)


@BOTH
@ALL
def test_a_model_under_training_stays_as_it_is(name: str, fast: bool) -> None:
    """Configuration, attention, mode, parameters and output of the passed model are the same before and after."""
    model, prompts = families.make(name), families.prompts(*LENGTHS)
    model.train()  # it keeps its mode, and is served without dropout all the same
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    pointers = {key: parameter.data_ptr() for key, parameter in model.named_parameters()}
    facts = (model.config.to_dict(), model.config._attn_implementation, model.generation_config.to_dict())
    outputs = outrider.load(model, "lookup", policy="fixed:5", fast=fast).generate(prompts, max_new_tokens=NEW)
    assert all(module.training for module in model.modules())
    assert (model.config.to_dict(), model.config._attn_implementation, model.generation_config.to_dict()) == facts
    assert {key: parameter.data_ptr() for key, parameter in model.named_parameters()} == pointers
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model.eval()
    for prompt, output in zip(prompts, outputs, strict=True):
        assert transformers_ids(model, prompt, NEW) == output.token_ids


@BOTH
@pytest.mark.parametrize("lengths", [(5, 20, 31), (31, 30, 1), (29,)])
def test_end_of_learned_positions(lengths: tuple[int, ...], fast: bool) -> None:
    """A GPT-2 writes to its context exactly what Transformers does; rows at the end of it may ride with others."""
    model = families.gpt2(context=32)
    target = served(model, fast)
    prompts = families.prompts(*lengths)
    expected = [transformers_ids(model, prompt, 32 - len(prompt)) for prompt in prompts]
    for label, drafter, k in parts(target):
        for row, prompt, ids in zip(write(target, drafter, k, prompts, new=100), prompts, expected, strict=True):
            assert_equal(model, prompt, ids, row.output, f"{label} at the end of the context")
            assert (row.finish, len(row.tokens)) == ("length", 32)


@BOTH
def test_draft_model_with_fewer_learned_positions(fast: bool) -> None:
    """A drafter out of positions leaves the row to the target alone: same ids, no error, the others go on drafting."""
    model = families.gpt2(context=64)
    target, short = served(model, fast), served(families.gpt2(context=24), fast)
    prompts = families.prompts(20, 3, 40)
    expected = [transformers_ids(model, prompt, 20) for prompt in prompts]
    for k in (1, 5, 20):
        rows = write(target, ModelDrafter(short, target.vocabulary), k, prompts, new=20)
        assert [row.output for row in rows] == expected


def test_longrope_serves_its_original_context() -> None:
    """Past it the angles of all positions change, which drafts and other rows could bring about early."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "short_factor": [1.0] * 4}
    rope |= {"long_factor": [4.0, 3.0, 2.0, 8.0], "original_max_position_embeddings": 32}
    model = families.make("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    target = served(model, True)
    assert target.context == 32
    prompts = families.prompts(25, 5, 12)
    for label, drafter, k in parts(target):
        for row, prompt in zip(write(target, drafter, k, prompts, new=100), prompts, strict=True):
            assert row.output == transformers_ids(model, prompt, 32 - len(prompt)), label


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_nothing_leaks_between_calls(models: Any, temperature: float, fast: bool) -> None:
    """A, B, A, B, A with the same object, streams left early in between: ids and rounds are the same each time."""
    sampling = Sampling(temperature=temperature, seed=4)
    one, two = families.prompts(15, 9)
    llm = outrider.load(models["gemma3"], "lookup:4", policy="heuristic", fast=fast)
    for drafter in (llm.drafter, ModelDrafter(llm.target, llm.target.vocabulary)):
        llm.drafter = drafter
        seen: dict[int, list[Any]] = {0: [], 1: []}
        for turn in range(5):
            for prompt in (two, one):
                leaving = llm.stream(prompt, sampling=sampling, max_new_tokens=NEW)
                next(leaving)
                leaving.stop()
            output = llm.generate((one, two)[turn % 2], sampling=sampling, max_new_tokens=NEW)
            seen[turn % 2].append((output.token_ids, [round_.tokens for round_ in output.rounds]))
        assert all(result == results[0] for results in seen.values() for result in results)
        assert seen[0][0] != seen[1][0]
