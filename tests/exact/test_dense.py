"""The lean decoder: Transformers' numbers within rounding for every family, and bits that no company changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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


@pytest.fixture(scope="module")
def demo_dense(demo_target: TransformersTarget) -> DenseTarget:
    """The demo model on the lean decoder."""
    assert recognises(demo_target)
    return DenseTarget(demo_target, free=False)


@pytest.mark.parametrize("offset", [60, 505])
def test_bits_do_not_depend_on_the_width_of_a_pass(demo_dense: DenseTarget, offset: int) -> None:
    """Passes of 1 to 64 tokens on both sides of a block's border give the logits of single passes, bit for bit."""
    ids = torch.randint(5, 40000, (offset + 64,)).tolist()
    cache = prefilled(demo_dense, [ids[:offset]])
    single = []
    for token in ids[offset:]:
        single.append(demo_dense.forward([Tree.chain([token])], cache)[0].logits)
        cache.keep([(0,)])
    expected = torch.cat(single)
    for width in (2, 3, 5, 8, 17, 64):
        cache.crop(0, offset)
        got = demo_dense.forward([Tree.chain(ids[offset : offset + width])], cache)[0].logits
        assert torch.equal(got, expected[:width]), f"width {width}"


def test_bits_do_not_depend_on_the_batch(demo_dense: DenseTarget) -> None:
    """A chain's logits are the same alone and beside rows of other lengths and widths."""
    ids = torch.randint(5, 40000, (530,)).tolist()
    alone = demo_dense.forward([Tree.chain(ids[100:104])], prefilled(demo_dense, [ids[:100]]))[0].logits
    # Prompts of other lengths are prefilled alone, as the loop does.
    parts = [prefilled(demo_dense, [ids[:length]]) for length in (100, 515, 7)]
    cache = KVCache.stack([(part, 0) for part in parts])
    trees = [Tree.chain(ids[100:104]), Tree.chain(ids[515:524]), Tree.chain([3])]
    assert torch.equal(demo_dense.forward(trees, cache)[0].logits, alone)


def test_a_branching_tree_gives_the_bits_of_its_chains(demo_dense: DenseTarget) -> None:
    """Although a node's ancestors lie in other slots than in a chain, beside siblings, on both sides of a block."""
    ids = torch.randint(5, 40000, (524,)).tolist()
    for offset in (100, 510):
        cache = prefilled(demo_dense, [ids[:offset]])
        alone = demo_dense.forward([Tree.chain(ids[offset : offset + 4])], cache)[0].logits
        tokens = [ids[offset], 9, ids[offset + 1], ids[offset + 2], 11, ids[offset + 3]]
        tree = Tree(torch.tensor(tokens), torch.tensor([-1, 0, 0, 2, 1, 3]))
        got = demo_dense.forward([tree], cache)[0].logits
        assert torch.equal(got[[0, 2, 3, 5]], alone)


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
