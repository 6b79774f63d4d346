"""Encoder-decoder targets: what their generation configurations demand, their drafters, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import transformers_ids
from loaded import drafting_for_itself
from seq2seq import bart, distilled, t5

import outrider
from outrider import Sampling
from outrider.drafters import DRAFTERS
from outrider.drafters.lookup import Lookup
from outrider.drafters.model import ModelDrafter
from outrider.encoder_decoder import EncoderDecoderTarget
from outrider.errors import BadOption, BadPrompt, UnsupportedModel
from outrider.kv import KVCache, Seat, gather
from outrider.types import Source, Tree

PAGE = (Path(__file__).parents[2] / "docs" / "combinations.md").read_text()
PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9], [(11 * place) % 90 + 4 for place in range(40)]]
NEW = 24
DEMANDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "first and last": {"forced_bos_token_id": 7, "forced_eos_token_id": 88},
    "suppressed": {"suppress_tokens": [37, 45, 50], "begin_suppress_tokens": [4, 26]},
    "suppressed behind the first": {"forced_bos_token_id": 7, "begin_suppress_tokens": [4, 37]},
    "bad words": {"bad_words_ids": [[37], [45, 88]]},
    "n-grams": {"no_repeat_ngram_size": 2},
    "n-grams of the source": {"encoder_no_repeat_ngram_size": 1},
    "length": {"min_length": 12},
    "new tokens": {"min_new_tokens": 9},
    "penalties": {"repetition_penalty": 1.3, "encoder_repetition_penalty": 1.4},
}


@pytest.fixture(scope="module")
def model() -> Any:
    """A BART whose users may not change it."""
    return bart(forced_eos_token_id=None)


@pytest.fixture(scope="module")
def plain(model: Any) -> outrider.Outrider:
    """Around it, without a drafter."""
    return outrider.load(model, "none", policy="fixed:20")


@pytest.mark.parametrize("name", DEMANDS)
def test_what_the_generation_configuration_demands(name: str) -> None:
    """Greedy ids are Transformers', plainly and with whole blocks accepted."""
    model = bart(forced_eos_token_id=None, eos_token_id=88)
    before = [transformers_ids(model, prompt, NEW) for prompt in PROMPTS]
    model.generation_config.update(**DEMANDS[name])
    expected = [transformers_ids(model, prompt, NEW) for prompt in PROMPTS]
    assert (expected != before) == (name != "nothing")
    plain = outrider.load(model, "none", policy="fixed:20")
    itself = plain.using()
    itself.drafter = drafting_for_itself(itself.target)
    for llm in (plain, plain.using("lookup"), plain.using("suffix"), itself):
        assert [output.token_ids for output in llm.generate(PROMPTS, max_new_tokens=NEW)] == expected


def test_every_drafter_writes_the_same_with_the_same_seed(plain: outrider.Outrider, model: Any) -> None:
    """Alone and in a batch of different lengths."""
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=5)
    expected = [plain.generate(prompt, sampling=sampling, max_new_tokens=NEW).token_ids for prompt in PROMPTS]
    assert len(expected[0]) > 5
    target = plain.target
    makers = {
        "lookup": Lookup(),
        "itself": drafting_for_itself(target),
        "distilled": ModelDrafter(EncoderDecoderTarget(distilled(model)), target.vocabulary, encoder=target),
        "another": ModelDrafter(EncoderDecoderTarget(t5()), target.vocabulary, encoder=target),
    }
    for name, drafter in makers.items():
        llm = plain.using(policy="fixed:5")
        llm.drafter = drafter
        outputs = llm.generate(PROMPTS, sampling=sampling, max_new_tokens=NEW)
        assert [output.token_ids for output in outputs] == expected, name
    reference = plain.using("reference")
    outputs = reference.generate(PROMPTS, sampling=sampling, max_new_tokens=NEW, prediction=expected)
    assert [output.token_ids for output in outputs] == expected
    assert sum(output.stats.accepted for output in outputs) > 30


def test_a_draft_with_the_targets_encoder_runs_it_once(model: Any, plain: outrider.Outrider) -> None:
    """A distilled decoder reads the target's states, drafts well, and its own encoder is let go; one with an encoder
    of its own runs that."""
    target, small = plain.target, EncoderDecoderTarget(distilled(model))
    runs: list[str] = []
    target.model.get_encoder().register_forward_hook(lambda *_: runs.append("target"))
    drafter = ModelDrafter(small, target.vocabulary, encoder=target)
    assert "encoder" in drafter.note
    assert small.model.get_encoder() is target.model.get_encoder()
    llm = plain.using(policy="fixed:4")
    llm.drafter = drafter
    output = llm.generate(PROMPTS[2], max_new_tokens=NEW)
    assert runs == ["target"]
    assert output.stats.acceptance_length > 2
    other = EncoderDecoderTarget(t5())
    other.model.get_encoder().register_forward_hook(lambda *_: runs.append("its own"))
    llm.drafter = ModelDrafter(other, target.vocabulary, encoder=target)
    assert llm.generate(PROMPTS[2], max_new_tokens=NEW).token_ids == output.token_ids
    assert llm.drafter.note == ""
    assert runs == ["target", "target", "its own"]


def test_a_tree_of_a_draft_model(model: Any, plain: outrider.Outrider) -> None:
    """Trees go through the decoder as chains do."""
    expected = [output.token_ids for output in plain.generate(PROMPTS, max_new_tokens=NEW)]
    llm = plain.using(drafter="suffix", policy="fixed:4,12")
    llm.drafter = ModelDrafter(EncoderDecoderTarget(distilled(model)), llm.target.vocabulary, encoder=llm.target)
    outputs = llm.generate(PROMPTS, max_new_tokens=NEW)
    assert [output.token_ids for output in outputs] == expected
    assert any(round_.nodes > round_.drafted + 1 or round_.drafted > 4 for round_ in outputs[2].rounds)


@pytest.mark.parametrize("name", ["lookup", "suffix"])
def test_what_was_read_is_copied_from(name: str) -> None:
    """The source's own words are drafted, before the answer has any of its own."""
    source = Source((9, 9), words=(11, 12, 13, 14, 15, 16))
    target = EncoderDecoderTarget(t5())
    drafter = outrider.load(t5(), name).drafter
    cache = target.new_cache()
    cache.encoded[0] = target.encode(source)
    state = drafter.begin((0,), {})
    drafter.seated(state, Seat(cache))
    scores = target.forward([Tree.chain([0])], cache)[0]
    drafter.commit(state, (12, 13), type(scores)(torch.zeros(2, target.vocabulary)), (0, 1))
    from outrider.types import Budget

    (draft,) = drafter.propose([state], [Budget(3)], [Sampling()], [None])  # type: ignore[list-item]
    assert draft.tree.tokens.tolist()[:4] == [13, 14, 15, 16]


def test_only_the_tokens_are_cropped() -> None:
    """Keeping, cropping and growing leave what the encoder made as it is; rows take it along."""
    target = EncoderDecoderTarget(t5())
    cache = target.new_cache(2)
    made = [target.encode(Source(tuple(prompt))) for prompt in PROMPTS[:2]]
    cache.encoded = list(made)
    target.forward([Tree.chain([0, 5, 6]), Tree.chain([0])], cache)
    cache.keep([(0, 2), ()])
    cache.crop(0, 1)
    cache.reserve(2000)
    assert cache.encoded == made
    assert KVCache.stack([(cache, 1), (cache, 0)]).encoded == made[::-1]
    assert cache.nbytes > sum(encoded.nbytes for encoded in made)
    seats = [Seat(cache, 0), Seat(cache, 1), Seat(target.new_cache())]
    seats[2].cache.encoded[0] = newcomer = target.encode(Source((7, 8)))
    assert gather(seats).encoded == [*made, newcomer]
    gather(seats[1:2] + seats[2:])
    assert [seat.encoded for seat in seats[1:]] == [made[1], newcomer]
    assert made[0].layers[0][0].shape == (1, 4, 8, 16)


def table() -> dict[str, str]:
    """docs/combinations.md: drafter -> what a target with an encoder answers."""
    found = {}
    for names, answer in re.findall(r"^\| (`[^|]*) \| encoder-decoder \| ([^|]*) \|$", PAGE, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), answer)
    return found


def test_the_page_names_every_drafter() -> None:
    """And says of each whether it serves targets with an encoder."""
    assert table().keys() == DRAFTERS.keys()


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafters_for_targets_with_an_encoder(name: str, plain: outrider.Outrider) -> None:
    """Those that do not serve them are refused by name before anything of theirs is loaded, in a cascade too."""
    works = table()[name] == "yes"
    assert DRAFTERS[name].for_encoders == works
    if works:
        return
    for spec in (f"{name}:/nowhere", f"cascade:lookup,{name}:/nowhere"):
        with pytest.raises(BadOption, match=f"'{name}:/nowhere' does not serve encoder-decoder") as caught:
            plain.using(spec)
        assert "lookup" in str(caught.value)


def test_what_is_refused(plain: outrider.Outrider) -> None:
    """Each in one sentence, before any work."""
    with pytest.raises(BadPrompt, match="encoder reads 256"):
        plain.generate([5] * 257)
    with pytest.raises(BadPrompt, match="vocabulary of 97"):
        plain.generate([97])
    with pytest.raises(BadOption, match="reads no audio"):
        plain.generate(audio="speech.wav")
    with pytest.raises(BadOption, match="pass audio="):
        plain.generate([5], language="en")
    with pytest.raises(BadPrompt, match="no prompt"):
        plain.generate()
    with pytest.raises(BadOption, match="encoder-decoder model, which compile"):
        outrider.load(bart(), compile=True)
    with pytest.raises(BadOption, match="draft model with an encoder"):
        ModelDrafter(plain.target, plain.target.vocabulary)
    with pytest.raises(UnsupportedModel, match="does not say which token"):
        model = t5(decoder_start_token_id=None)
        model.generation_config.decoder_start_token_id = None
        EncoderDecoderTarget(model)


def test_int8_is_exact_against_the_quantised_model() -> None:
    """Rounded weights: lookup and the target as its own drafter write what plain decoding writes."""
    plain = outrider.load(bart(forced_eos_token_id=None), "none", quantize="int8", policy="fixed:8")
    expected = [output.token_ids for output in plain.generate(PROMPTS, max_new_tokens=NEW)]
    llm = plain.using("lookup")
    assert [output.token_ids for output in llm.generate(PROMPTS, max_new_tokens=NEW)] == expected
    llm.drafter = drafting_for_itself(llm.target)
    assert [output.token_ids for output in llm.generate(PROMPTS, max_new_tokens=NEW)] == expected
