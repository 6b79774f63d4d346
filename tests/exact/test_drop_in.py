"""Outrider inside Transformers' `generate`: the same ids, through its own options, streamers and criteria."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers.generation import GenerateDecoderOnlyOutput, StoppingCriteria, StopStringCriteria

import outrider
from outrider.errors import BadOption, BadPrompt, UsageError
from outrider.sampling import History
from outrider.transformers_options import Reading
from outrider.types import Tree

VOCABULARY = 24
NEW = 24
EOS = 5
PROMPTS = [[3, 7, 9, 3, 7], [11], [4, 6, 4, 6, 4, 6, 4, 6, 4]]
DRAFTERS = ["suffix", "lookup", "none"]


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny random Llama whose texts move and repeat themselves now and then."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def inputs(*prompts: list[int]) -> dict[str, torch.Tensor]:
    """A batch with its padding on the left."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def assert_same(model: Any, recipe: Any, batch: dict[str, torch.Tensor], **options: Any) -> Any:
    """What `generate` writes with and without Outrider is the same."""
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    expected = model.generate(**batch, **copy.deepcopy(options))
    found = model.generate(**batch, **options, custom_generate=recipe)
    assert torch.equal(found, expected), f"{found.tolist()} instead of {expected.tolist()}"
    return found


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_ids_of_prompts_and_batches(model: Any, drafter: str) -> None:
    recipe = outrider.generate_with(drafter, policy="fixed:6")
    for prompt in PROMPTS:
        assert_same(model, recipe, inputs(prompt))
    found = assert_same(model, recipe, inputs(*PROMPTS), eos_token_id=EOS)
    ends = [row.tolist()[9:].index(EOS) for row in found if EOS in row.tolist()[9:]]
    assert len(ends) > 0 and len(set(ends)) == len(ends), "rows have to end at different lengths"
    if drafter == "suffix":
        assert sum(output.stats.accepted for output in recipe.outputs) > 0
        assert all(len(output.rounds) < len(output.token_ids) for output in recipe.outputs[:1])


OPTIONS: dict[str, dict[str, Any]] = {
    "repetition penalty": {"repetition_penalty": 1.3},
    "n-grams": {"no_repeat_ngram_size": 2},
    "bias before penalty": {"sequence_bias": [[[4], 3.0], [[7, 9], -5.0]], "repetition_penalty": 1.2},
    "bad words": {"bad_words_ids": [[4], [7, 9]]},
    "least length": {"min_new_tokens": 9, "eos_token_id": [EOS, 6]},
    "least whole length": {"min_length": 14, "eos_token_id": [EOS, 6]},
    "forced end": {"forced_eos_token_id": EOS, "eos_token_id": EOS},
    "decay": {"exponential_decay_length_penalty": (3, 1.4), "eos_token_id": EOS},
    "suppressed": {"suppress_tokens": [4, 7], "begin_suppress_tokens": [3, 9]},
    "allowed, by row": {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 7, 9, 11, 4 + (len(ids) % 3)]},
    "two ends": {"eos_token_id": [EOS, 6]},
    "no end": {},
    "whole length": {"max_new_tokens": None, "max_length": 20},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.filterwarnings("ignore:.*max_new_tokens.*")
def test_options_mean_what_they_mean_there(model: Any, name: str) -> None:
    recipe = outrider.generate_with("suffix", policy="fixed:5")
    plain = model.generate(**inputs(*PROMPTS), max_new_tokens=NEW, do_sample=False)
    for batch in (inputs(PROMPTS[2]), inputs(*PROMPTS)):
        found = assert_same(model, recipe, batch, **OPTIONS[name])
    same = found.shape == plain.shape and torch.equal(found, plain)
    assert same == (name == "no end"), "the option has to change something"


def test_configuration_objects(model: Any) -> None:
    config = transformers.GenerationConfig(max_new_tokens=7, do_sample=False, eos_token_id=EOS, pad_token_id=2)
    recipe = outrider.generate_with("suffix")
    expected = model.generate(**inputs(*PROMPTS), generation_config=config)
    found = model.generate(**inputs(*PROMPTS), generation_config=config, custom_generate=recipe)
    assert torch.equal(found, expected)
    whole = model.generate(
        **inputs(*PROMPTS), generation_config=config, custom_generate=recipe, return_dict_in_generate=True
    )
    assert isinstance(whole, GenerateDecoderOnlyOutput)
    assert torch.equal(whole.sequences, expected)


class EndsWith(StoppingCriteria):
    """Stops a row behind two given tokens, and remembers what it was shown."""

    def __init__(self, first: int, second: int) -> None:
        self._pair = torch.tensor([first, second])
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        self.seen += input_ids.tolist()
        return (input_ids[:, -2:] == self._pair).all(dim=1)


def test_stopping_criteria_cut_within_a_draft(model: Any) -> None:
    """A criterion is asked after each token, in order, and nothing is written behind the one where it stopped."""
    plain = model.generate(**inputs(PROMPTS[2]), max_new_tokens=NEW, do_sample=False)[0, 9:].tolist()
    recipe = outrider.generate_with("suffix", policy="fixed:8")
    for place in range(1, 16):
        criterion = EndsWith(*plain[place : place + 2])
        found = assert_same(model, recipe, inputs(PROMPTS[2]), stopping_criteria=[copy.deepcopy(criterion)])
        again = EndsWith(*plain[place : place + 2])
        model.generate(
            **inputs(PROMPTS[2]), max_new_tokens=NEW, do_sample=False, stopping_criteria=[again], custom_generate=recipe
        )
        assert again.seen == [found[0, :end].tolist() for end in range(10, found.shape[1] + 1)]


def test_stopping_criteria_of_a_batch(model: Any) -> None:
    plain = model.generate(**inputs(*PROMPTS), max_new_tokens=NEW, do_sample=False)[0, 9:].tolist()
    options = {"stopping_criteria": [EndsWith(*plain[3:5])], "eos_token_id": EOS}
    assert_same(model, outrider.generate_with("suffix"), inputs(*PROMPTS), **options)


class Told:
    """A streamer that remembers."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.told.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("prompts", [PROMPTS[2:], PROMPTS], ids=["one", "batch"])
def test_streamers_are_told_what_transformers_tells_them(model: Any, prompts: list[list[int]]) -> None:
    there, here = Told(), Told()
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": EOS}
    model.generate(**inputs(*prompts), streamer=there, **options)
    recipe = outrider.generate_with("suffix", policy="fixed:6")
    model.generate(**inputs(*prompts), streamer=here, custom_generate=recipe, **options)
    assert here.told == there.told
    assert len(here.told) > 5
    assert here.ended == there.ended == 1


def test_sampling_repeats_with_torchs_seed_whatever_the_drafter(model: Any) -> None:
    def drawn(drafter: str, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        recipe = outrider.generate_with(drafter, policy="fixed:5")
        options = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.8, "num_return_sequences": 2}
        rows: list[list[int]] = model.generate(**inputs(*PROMPTS), custom_generate=recipe, **options).tolist()
        return rows

    first = drawn("suffix", 1)
    assert drawn("suffix", 1) == first == drawn("none", 1)
    assert drawn("suffix", 2) != first
    assert first[0] != first[1], "sequences of one prompt are independent"


WARPED: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 0, "renormalize_logits": True},
    {"top_k": 7, "typical_p": 0.6},
    {"top_k": 0, "top_h": 0.4, "temperature": 0.9},
    {"top_k": 3, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    {"top_k": 9, "epsilon_cutoff": 0.05, "min_p": 0.01},
]


@pytest.mark.parametrize("options", WARPED, ids=lambda options: ",".join(options))
def test_the_law_of_sampling_is_transformers_own(model: Any, options: dict[str, Any]) -> None:
    """The law that the loop draws from, against the processors that Transformers would draw with."""
    prepared: dict[str, Any] = {}

    def look(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, **others: Any) -> Any:
        prepared.update(others, processors=logits_processor, criteria=stopping_criteria)
        return input_ids

    batch = inputs(*PROMPTS)
    model.generate(**batch, do_sample=True, max_new_tokens=4, custom_generate=look, **options)
    reading = Reading(prepared["generation_config"], prepared["processors"], prepared["criteria"], torch.device("cpu"))
    ids = torch.tensor([[*row, 4, 6] for row in batch["input_ids"].tolist()])
    logits = torch.randn(len(PROMPTS), VOCABULARY) * 3
    expected = prepared["processors"](ids, logits.clone()).softmax(-1)
    for row, prompt in enumerate(PROMPTS):
        padding = [0] * (batch["input_ids"].shape[1] - len(prompt))
        history = History([*prompt, 4, 6], len(prompt))
        law = reading.sampling(row, padding).law(logits[row : row + 1], Tree.chain([6]), history)
        torch.testing.assert_close(law.probs[0], expected[row], rtol=1e-4, atol=1e-6)


def refused(name: str) -> Callable[[Any], Any]:
    """Options for `generate` that are refused by this name, made for a model."""
    made: dict[str, Callable[[Any], Any]] = {
        "num_beams": lambda model: {"num_beams": 2},
        "assistant_model": lambda model: {"assistant_model": model},
        "prompt_lookup_num_tokens": lambda model: {"prompt_lookup_num_tokens": 3},
        "guidance_scale": lambda model: {"guidance_scale": 1.5},
        "encoder_repetition_penalty": lambda model: {"encoder_repetition_penalty": 1.2},
        "encoder_no_repeat_ngram_size": lambda model: {"encoder_no_repeat_ngram_size": 2},
        "output_scores": lambda model: {"output_scores": True, "return_dict_in_generate": True},
        "output_logits": lambda model: {"output_logits": True, "return_dict_in_generate": True},
        "output_hidden_states": lambda model: {"output_hidden_states": True, "return_dict_in_generate": True},
        "cache_implementation": lambda model: {"cache_implementation": "static"},
        "use_cache": lambda model: {"use_cache": False},
        "cache": lambda model: {"past_key_values": transformers.DynamicCache()},
        "synced_gpus": lambda model: {"synced_gpus": True},
        "watermarking_config": lambda model: {"watermarking_config": transformers.WatermarkingConfig()},
        "prefill_chunk_size": lambda model: {"prefill_chunk_size": 2},
        "inputs_embeds": lambda model: {"inputs_embeds": model.get_input_embeddings()(torch.tensor([[3, 7]]))},
        "max_new_tokens": lambda model: {"max_new_tokens": 1000},
    }
    return made[name]


@pytest.mark.parametrize(
    "name",
    [
        *("num_beams", "assistant_model", "prompt_lookup_num_tokens", "guidance_scale", "encoder_repetition_penalty"),
        *("encoder_no_repeat_ngram_size", "output_scores", "output_logits", "output_hidden_states"),
        *("cache_implementation", "use_cache", "cache", "synced_gpus", "watermarking_config", "prefill_chunk_size"),
        *("inputs_embeds", "max_new_tokens"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # Transformers warns of some on its own account
def test_what_is_not_served_is_refused_by_name(model: Any, name: str) -> None:
    recipe = outrider.generate_with("suffix")
    options = {"max_new_tokens": 4, "do_sample": False, **refused(name)(model)}
    batch = {} if name == "inputs_embeds" else inputs(PROMPTS[0])
    with pytest.raises(BadOption, match=name):
        model.generate(**batch, **options, custom_generate=recipe)


def test_inputs_that_cannot_be_read_are_refused(model: Any) -> None:
    recipe = outrider.generate_with("suffix")
    ids = torch.tensor([[3, 7, 0], [3, 7, 9]])
    with pytest.raises(BadPrompt, match="left"):
        model.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=3, custom_generate=recipe)
    places = torch.tensor([[4, 5, 6]])
    with pytest.raises(BadPrompt, match="position_ids"):
        model.generate(ids[1:], position_ids=places, max_new_tokens=3, custom_generate=recipe)
    with pytest.raises(UsageError, match="empty"):
        mask = torch.tensor([[0, 0, 0], [1, 1, 1]])
        model.generate(ids, attention_mask=mask, max_new_tokens=3, custom_generate=recipe)
    for spec in ({"drafter": "nothing"}, {"verifier": "nothing"}):
        with pytest.raises(BadOption):
            outrider.generate_with(**spec)


def test_rows_of_different_lengths_need_padding(model: Any) -> None:
    criterion = EndsWith(1, 2)
    config = transformers.GenerationConfig(max_new_tokens=4, do_sample=False)
    changed = copy.deepcopy(model)
    changed.generation_config.pad_token_id = None
    changed.config.pad_token_id = None
    with pytest.raises(BadOption, match="pad_token_id"):
        changed.generate(
            **inputs(*PROMPTS),
            generation_config=config,
            stopping_criteria=[criterion],
            custom_generate=outrider.generate_with("suffix"),
        )


def test_the_model_stays_as_it_is(model: Any) -> None:
    def everything() -> tuple[Any, ...]:
        weights = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
        modules = [(name, type(module), id(module)) for name, module in model.named_modules()]
        attention = model.config._attn_implementation
        return weights, modules, model.config.to_dict(), model.generation_config.to_dict(), attention

    before = everything()
    for fast in (True, False):
        assert_same(model, outrider.generate_with("suffix", fast=fast), inputs(*PROMPTS), eos_token_id=EOS)
    after = everything()
    assert before[1:] == after[1:]
    for name, (place, value) in before[0].items():
        assert after[0][name][0] == place and torch.equal(after[0][name][1], value)


@pytest.mark.parametrize("fast", ["auto", False])
def test_changed_weights_are_noticed(model: Any, fast: Any) -> None:
    """A step of training between two calls: the second one writes what the model has learned."""
    changed = copy.deepcopy(model)
    recipe = outrider.generate_with("suffix", fast=fast)
    before = assert_same(changed, recipe, inputs(*PROMPTS))
    optimizer = torch.optim.SGD(changed.parameters(), lr=3.0)
    changed(**inputs(PROMPTS[2]), labels=inputs(PROMPTS[2])["input_ids"]).loss.backward()
    optimizer.step()
    after = assert_same(changed, recipe, inputs(*PROMPTS))
    assert not torch.equal(before, after)


class Adapter(torch.nn.Module):
    """What adapters look like: it stands in a linear's place, shows its weight, and computes something else."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.off = base, False
        self.more = torch.nn.Linear(base.in_features, base.out_features, bias=False)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = self.base(states)
        return whole if self.off else whole + self.more(states)


def test_adapters_and_hooks_play_their_part(model: Any) -> None:
    """Whatever was put into the model or hung on it after it was made, and switched off again."""
    changed = copy.deepcopy(model)
    recipe = outrider.generate_with("suffix")
    plain = assert_same(changed, recipe, inputs(*PROMPTS))
    attention = changed.model.layers[0].self_attn
    attention.v_proj = Adapter(attention.v_proj)
    assert not torch.equal(assert_same(changed, recipe, inputs(*PROMPTS)), plain)
    attention.v_proj.off = True
    assert torch.equal(assert_same(changed, recipe, inputs(*PROMPTS)), plain)
    hook = changed.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, given, states: 3 * states)
    assert not torch.equal(assert_same(changed, recipe, inputs(*PROMPTS)), plain)
    hook.remove()
    assert torch.equal(assert_same(changed, recipe, inputs(*PROMPTS)), plain)


def test_a_model_is_remembered_and_let_go(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = outrider.load
    monkeypatch.setattr("outrider.drop_in.load", lambda *given, **options: loads.append(1) or load(*given, **options))
    recipe = outrider.generate_with("suffix")
    passing = copy.deepcopy(model)
    for _ in range(3):
        assert_same(passing, recipe, inputs(PROMPTS[0]))
    assert len(loads) == 1
    gone = weakref.ref(passing)
    del passing
    gc.collect()
    assert gone() is None


@pytest.fixture(scope="module")
def pipe(demo_model: Any, demo_tokenizer: Any) -> Any:
    """The demo model in a pipeline, with a tokenizer of its own: pipelines set its padding side."""
    return transformers.pipeline("text-generation", model=demo_model, tokenizer=copy.deepcopy(demo_tokenizer))


@pytest.mark.filterwarnings("ignore:.*max_new_tokens.*")
def test_pipelines(pipe: Any) -> None:
    """Texts and chats of a real model, alone and in a batch."""
    texts = ["One, two, three, one, two, three, one, two,", "The capital of France is"]
    chat = [{"role": "user", "content": "Say the word blue three times."}]
    recipe = outrider.generate_with("suffix")
    options = {"max_new_tokens": 12, "do_sample": False}
    for given, more in ((texts, {"batch_size": 2}), (chat, {})):
        assert pipe(given, custom_generate=recipe, **options, **more) == pipe(given, **options, **more)
    assert recipe.outputs[0].stats.rounds <= 12


def test_stop_strings_on_a_real_model(demo_model: Any, demo_tokenizer: Any) -> None:
    batch = demo_tokenizer("One, two, three, one, two, three, one, two,", return_tensors="pt")
    recipe = outrider.generate_with("suffix", policy="fixed:6")
    criterion = StopStringCriteria(demo_tokenizer, [" two"])
    found = assert_same(demo_model, recipe, batch, stopping_criteria=[criterion])
    assert found.shape[1] < batch["input_ids"].shape[1] + NEW
    assert recipe.outputs[0].stats.accepted > 0
