"""Small random models of many families, passed in memory: greedy ids equal Transformers', and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from comparing import assert_equal, transformers_ids
from loaded import drafting_for_itself

import outrider
from outrider.encoder_decoder import EncoderDecoderTarget
from outrider.engine import Engine
from outrider.errors import BadPrompt
from outrider.kv import KVCache
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.target import TransformersTarget
from outrider.types import Source, Tree
from outrider.verify.match import Match

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = {"sliding_window": 8}
_ENCODER = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None, "vocab_size": 97}
_BART = {
    **_ENCODER,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,  # tied and random, these would repeat one token
}
T5 = {**_ENCODER, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 3, "num_heads": 4, "tie_word_embeddings": False}
FLAN = {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": None}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SMALL, "tie_word_embeddings": True}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**GPT2, "n_positions": 256}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SMALL),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SMALL, **WINDOW}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SMALL, **WINDOW, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**SMALL, **WINDOW, "query_pre_attn_scalar": 16}),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "flan-t5": ("T5Config", "T5ForConditionalGeneration", {**T5, **FLAN}),
    "bart": ("BartConfig", "BartForConditionalGeneration", {**_BART, "forced_bos_token_id": 5}),
    "marian": ("MarianConfig", "MarianMTModel", {**_BART, "decoder_vocab_size": 97, "forced_eos_token_id": 3}),
    "phi": ("PhiConfig", "PhiForCausalLM", {k: v for k, v in SMALL.items() if k != "head_dim"}),
}
PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [3], [(11 * place) % 90 + 2 for place in range(40)]]
NEW = 30


def build(family: str, **changes: Any) -> Any:
    """A small random model; weights large enough that its output is not one repeated token."""
    config_name, model_name, options = FAMILIES[family]
    torch.manual_seed(3)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**{**options, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name and "ln_" not in name:
            parameter.data.normal_(0, 0.3 if "relative" in name else 0.15)
    return model


def plain_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """[V] the model's own logits after these tokens, which stand behind the prompt."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            start = model.config.decoder_start_token_id
            out = model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *tokens]]))
        else:
            out = model(torch.tensor([[*prompt, *tokens]]))
    logits: torch.Tensor = out.logits[0, -1]
    return logits


def read_prompts(target: Any, *prompts: list[int]) -> KVCache:
    """A cache with a row for each prompt, and nothing pending but for what comes behind it."""
    cache: KVCache = target.new_cache(len(prompts))
    if isinstance(target, EncoderDecoderTarget):
        cache.encoded = [target.encode(Source(tuple(prompt))) for prompt in prompts]
        prompts = tuple(list(target.start) for _ in prompts)
    target.forward([Tree.chain(prompt) for prompt in prompts], cache)
    cache.keep([range(len(prompt)) for prompt in prompts])
    return cache


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "modules"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family: str, fast: bool) -> None:
    """Lookup, and a draft model that is the target itself with k = 20; alone and in a ragged batch; past the window."""
    model = build(family)
    expected = [transformers_ids(model, prompt, NEW) for prompt in PROMPTS]
    plain = outrider.load(model, "none", policy="fixed:20", fast=fast)
    itself = plain.using()
    itself.drafter = drafting_for_itself(itself.target)
    for llm in (plain, plain.using("lookup"), itself):
        batch = llm.generate(PROMPTS, max_new_tokens=NEW)
        alone = [llm.generate(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
        for prompt, right, together, single in zip(PROMPTS, expected, batch, alone, strict=True):
            for output in (together, single):
                assert_equal(model, prompt, right, output.token_ids, f"{family}, {llm.drafter.spec}")
    assert itself.generate(PROMPTS[0], max_new_tokens=NEW).stats.acceptance_rate == 1


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_prefill_in_chunks_changes_nothing(family: str) -> None:
    model = build(family)
    target = TransformersTarget(model)
    request = Request(tuple(PROMPTS[2]), Sampling(), 0, NEW)
    engine = Engine(target, outrider.load(model, "lookup").drafter, Match(), lambda: Fixed(5), prefill_chunk=4)
    (row, *_) = {id(row): row for row, _ in engine.run([request])}.values()
    assert_equal(model, PROMPTS[2], transformers_ids(model, PROMPTS[2], NEW), row.output, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_of_a_tree_equals_its_path_in_a_row(family: str) -> None:
    """In a ragged batch, and again after keeping a path that does not lie in a row."""
    model = build(family)
    target = outrider.load(model, "none", fast=False).target
    cache = read_prompts(target, PROMPTS[2], PROMPTS[0])
    tree = Tree(torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([-1, 0, 0, 1, 2, 4]))
    paths = {0: [1], 1: [1, 2], 2: [1, 3], 3: [1, 2, 4], 4: [1, 3, 5], 5: [1, 3, 5, 6]}
    scores = target.forward([tree, Tree.chain([9, 8])], cache)

    def close(logits: torch.Tensor, which: int, tokens: list[int]) -> None:
        expected = plain_logits(model, PROMPTS[which], tokens)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)

    for node, path in paths.items():
        close(scores[0].logits[node], 2, path)
    close(scores[1].logits[1], 0, [9, 8])
    cache.keep([[0, 2, 4], [0]])
    after = target.forward([Tree.chain([7, 7]), Tree.chain([6])], cache)
    close(after[0].logits[1], 2, [1, 3, 5, 7, 7])
    close(after[1].logits[0], 0, [9, 6])


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "modules"])
@pytest.mark.parametrize("family", ["gpt2", "bart", "marian"])
def test_the_context_ends_the_output(family: str, fast: bool) -> None:
    """These have no position beyond their context: the output ends there, in a batch whose rows end at different
    times."""
    model = build(family, **{"n_positions" if family == "gpt2" else "max_position_embeddings": 24})
    llm = outrider.load(model, "none", policy="fixed:20", fast=fast)
    llm.drafter = drafting_for_itself(llm.target)
    outputs = llm.generate([[3], PROMPTS[0], PROMPTS[2][:20]], max_new_tokens=100)
    for output in outputs:
        assert output.finish_reason == "length"
        assert len(output.prompt_ids) + len(output.token_ids) == 24
    with pytest.raises(BadPrompt, match="24"):
        llm.generate(PROMPTS[2][:25], max_new_tokens=1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "t5", "bart"])
def test_the_users_model_is_never_changed(family: str) -> None:
    model = build(family)
    ids = PROMPTS[0]
    before = transformers_ids(model, ids, 10)
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    implementation, config = model.config._attn_implementation, model.config.to_dict()
    outrider.load(model, "lookup").generate(ids, max_new_tokens=10)
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == config
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == places
    assert transformers_ids(model, ids, 10) == before


@pytest.mark.parametrize("family", ["llama", "t5", "bart"])
def test_requests_do_not_influence_later_ones(family: str) -> None:
    """A, B, A, B, A, with streams left half way in between."""
    llm = outrider.load(build(family), "lookup")
    seen: dict[int, list[int]] = {}
    for which in (0, 2, 0, 2, 0):
        ids = llm.generate(PROMPTS[which], max_new_tokens=20).token_ids
        assert seen.setdefault(which, ids) == ids
        next(llm.stream(PROMPTS[2 - which], max_new_tokens=20))
