"""The lean decoder: Transformers' numbers within rounding for every family, and bits that no company changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import read_model

from outrider import native
from outrider.dense import DenseTarget, recognises
from outrider.kv import KVCache
from outrider.linear import FastLinear, NativeLinear, RowsOf, can_pack, fused, pack_modules
from outrider.target import TransformersTarget
from outrider.types import Tree

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")) or not native.available(),
    reason="no oneDNN or no C++ compiler here: the lean decoder is not used",
)

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, scaled rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3Text", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
}


def build(family: str) -> Any:
    """A small random model of a family."""
    import transformers

    name, options = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**SMALL, **options)
    model_name = "Gemma3" if name == "Gemma3Text" else name
    model = getattr(transformers, f"{model_name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)  # norms and biases too: at their initial values they would hide mistakes
    return model


def prefilled(target: Any, rows: list[list[int]]) -> KVCache:
    """A cache that holds these rows."""
    cache = target.new_cache(len(rows))
    target.forward([Tree.chain(row) for row in rows], cache)
    cache.keep([range(len(row)) for row in rows])
    return cache


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_transformers(family: str) -> None:
    """All hidden states and the logits, on a ragged batch with a tree, past the window."""
    model = build(family)
    source = TransformersTarget(model)
    assert recognises(source)
    dense = DenseTarget(source, free=False)
    ids = torch.randint(0, 97, (40,)).tolist()
    layers = tuple(range(SMALL["num_hidden_layers"] + 1))
    trees = [Tree(torch.tensor([5, 6, 7, 8]), torch.tensor([-1, 0, 0, 1])), Tree.chain(ids[20:22])]
    scores = [target.forward(trees, prefilled(target, [ids, ids[:20]]), taps=layers) for target in (source, dense)]
    for expected, got in zip(*scores, strict=True):
        for layer in layers:
            torch.testing.assert_close(got.hidden[layer], expected.hidden[layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("option", [{"surprise": 1}, {"hidden_act": "relu"}])
def test_an_unknown_option_keeps_transformers_modules(option: dict[str, Any]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    assert not recognises(TransformersTarget(LlamaForCausalLM(LlamaConfig(**SMALL, **option)).eval()))


def lean(folder: Path, kind: str) -> DenseTarget:
    """A real model on the lean decoder."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    source = TransformersTarget(read_model(folder, dtype), own=True)
    assert recognises(source)
    return DenseTarget(source, free=True, int8=kind == "int8")


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def demo_dense(demo_folder: Path, request: pytest.FixtureRequest) -> DenseTarget:
    """The demo model on the lean decoder, with weights of each kind."""
    return lean(demo_folder, request.param)


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def large_dense(models_folder: Path, request: pytest.FixtureRequest) -> DenseTarget:
    """The benchmark target, for the slow tests."""
    return lean(models_folder / "qwen1.5b-bfloat16", request.param)


def check_widths(target: DenseTarget, offset: int, widths: Sequence[int]) -> None:
    """Passes of these widths give the logits of single passes, bit for bit, and so does a prompt read at once."""
    ids = torch.randint(5, 40000, (offset + max(widths),)).tolist()
    cache = prefilled(target, [ids[:offset]])
    single = []
    for token in ids[offset:]:
        single.append(target.forward([Tree.chain([token])], cache)[0].logits)
        cache.keep([(0,)])
    expected = torch.cat(single)
    for width in widths:
        cache.crop(0, offset)
        got = target.forward([Tree.chain(ids[offset : offset + width])], cache)[0].logits
        assert torch.equal(got, expected[:width]), f"width {width}"
    whole = target.forward([Tree.chain(ids)], target.new_cache(), last_only=True)[0].logits
    assert torch.equal(whole, expected[-1:])


def check_batches(target: DenseTarget, sizes: Sequence[int]) -> None:
    """A chain's and a tree's logits are the same alone and beside rows of other lengths and widths."""
    ids = torch.randint(5, 40000, (530,)).tolist()
    lengths = [100, 515, 7, 63, 64, 65, 128, 300]
    widths = [4, 9, 1, 2, 3, 5, 1, 8]
    trees = [Tree.chain(ids[length : length + width]) for length, width in zip(lengths, widths, strict=True)]
    trees[1] = Tree(torch.tensor(ids[515:520]), torch.tensor([-1, 0, 0, 2, 1]))
    parts = [prefilled(target, [ids[:length]]) for length in lengths]
    alone = [target.forward([tree], part)[0].logits for tree, part in zip(trees, parts, strict=True)]
    for size in sizes:
        cache = KVCache.stack([(part, 0) for part in parts[:size]])
        for row, scores in enumerate(target.forward(trees[:size], cache)):
            assert torch.equal(scores.logits, alone[row]), f"row {row} of {size}"


def check_tree(target: DenseTarget, offset: int) -> None:
    """A branching tree gives the bits of its chains, although ancestors lie in other slots, beside siblings."""
    ids = torch.randint(5, 40000, (offset + 4,)).tolist()
    cache = prefilled(target, [ids[:offset]])
    alone = target.forward([Tree.chain(ids[offset:])], cache)[0].logits
    tokens = [ids[offset], 9, ids[offset + 1], ids[offset + 2], 11, ids[offset + 3]]
    tree = Tree(torch.tensor(tokens), torch.tensor([-1, 0, 0, 2, 1, 3]))
    got = target.forward([tree], cache)[0].logits
    assert torch.equal(got[[0, 2, 3, 5]], alone)


@pytest.mark.parametrize("offset", [60, 505])
def test_bits_do_not_depend_on_the_width_of_a_pass(demo_dense: DenseTarget, offset: int) -> None:
    """On both sides of a block of keys and of an allocated block."""
    check_widths(demo_dense, offset, (2, 3, 5, 8, 17, 25, 64))


def test_bits_do_not_depend_on_the_batch(demo_dense: DenseTarget) -> None:
    check_batches(demo_dense, (1, 3, 8))


@pytest.mark.parametrize("offset", [100, 510])
def test_bits_of_trees(demo_dense: DenseTarget, offset: int) -> None:
    check_tree(demo_dense, offset)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [63, 250, 505])
def test_bits_of_the_large_model(large_dense: DenseTarget, offset: int) -> None:
    """All of it on the benchmark target."""
    check_widths(large_dense, offset, range(1, 65, 7))
    check_batches(large_dense, (1, 3, 8))
    check_tree(large_dense, offset)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_fast_linear_equals_plain_and_its_rows_do_not_influence_each_other(kind: str) -> None:
    """Two weights side by side, one bias lacking, sizes that fill no register, rows on both sides of every tile."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    linears = [torch.nn.Linear(333, out, bias=out == 30, dtype=dtype) for out in (30, 41)]
    x = torch.randn(60, 333, dtype=dtype)
    packed = fused(linears, free=False, int8=kind == "int8")
    with torch.no_grad():
        expected = torch.cat([linear(x) for linear in linears], 1).float()
    error = (packed(x).float() - expected).abs().max() / expected.abs().max()
    assert error < {"float32": 1e-6, "bfloat16": 1e-2, "int8": 2e-2}[kind]
    for width in range(1, 60):
        assert torch.equal(packed(x[:width]), packed(x)[:width]), width


def test_a_tied_embedding_is_read_back_from_the_panels() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        linear = torch.nn.Linear(21, 75, bias=False, dtype=dtype)
        packed = fused([linear], free=False, tied=True)
        assert isinstance(packed, NativeLinear)
        ids = torch.randint(0, 75, (2, 40))
        assert torch.equal(RowsOf(packed)(ids), torch.nn.functional.embedding(ids, linear.weight))


def test_other_models_get_packed_linears() -> None:
    """GPT-2's `Conv1D` included; logits within rounding, and the model that was passed is the one that changed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=64)).eval()
    ids = torch.randint(0, 97, (1, 20))
    with torch.no_grad():
        before = model(ids).logits
        pack_modules(model)
        after = model(ids).logits
    assert sum(isinstance(module, FastLinear) for module in model.modules()) == 2 * 4 + 1
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
