"""Drafting across tokenizers changes nothing: the exact law on toys, and ids on the demo model and on real pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from alphabets import Alphabet
from checks import Case, assert_exact
from comparing import assert_equal, assert_near, transformers_ids
from loaded import read_model, read_tokenizer
from prompts import PROMPTS
from toy import Table, ToyTarget

import outrider
from outrider import Sampling
from outrider.drafters.transcript import Pairing
from outrider.drafters.translated import Translated
from outrider.pieces import Pieces
from outrider.text import encode
from outrider.verify import make_verifier

RULES = pytest.mark.parametrize("rule", ["match", "token", "block", "traversal"])
SOME = ["russian", "emoji", "python", "question"]
NEW = 18


def toy(mode: str, target: Sequence[str], draft: Sequence[str], seed: int) -> Translated:
    """A drafter between two alphabets, with a draft model of its own mind."""
    pairing = Pairing(Alphabet(target), Alphabet(draft), (), (), (len(target), len(draft)))
    return Translated(ToyTarget(Table(len(draft), seed)), pairing, len(target), mode)


@RULES
@pytest.mark.parametrize("mode", ["tli", "slem"])
@pytest.mark.parametrize(
    ("target", "draft"),
    [("abc", "cab"), ("abc", "bxa"), (["a", "b", "ab"], "ba"), ("abc", ["a", "bc", "b", "ca"])],
    ids=["permuted", "partly shared", "longer target tokens", "longer draft tokens"],
)
def test_exact_law(rule: str, mode: str, target: Sequence[str], draft: Sequence[str]) -> None:
    """The joint law of the first tokens, over two rounds, is the target's own."""
    assert_exact(Case(Table(3, 51), toy(mode, target, draft, 52), make_verifier(rule), depth=2))


@pytest.fixture(scope="module", params=["tli", "slem"])
def itself(demo: Any, request: pytest.FixtureRequest) -> Any:
    """The demo model drafting for itself as if its tokenizer were another one."""
    plain = demo("none")
    llm = plain.using("none", policy="fixed:5")
    pieces = Pieces(llm.tokenizer, "target")
    pairing = Pairing(pieces, pieces, llm.target.eos, llm.target.eos, (llm.target.vocabulary,) * 2)
    llm.drafter = Translated(llm.target, pairing, llm.target.vocabulary, request.param)
    return llm


def test_greedy_equals_transformers(itself: Any, demo_model: Any, demo_writes: Any) -> None:
    """Several scripts and emoji, together and alone; nearly all of the drafts are right, so blocks are long."""
    ids = [encode(itself.tokenizer, PROMPTS[name]) for name in SOME]
    together = itself.generate(ids, max_new_tokens=NEW)
    for name, prompt, output in zip(SOME, ids, together, strict=True):
        expected = demo_writes(prompt, NEW)
        assert_equal(demo_model, prompt, expected, output.token_ids, f"{name!r}, {itself.drafter.spec}")
        assert output.stats.acceptance_length > 3, name
    assert itself.generate(ids[1], max_new_tokens=NEW).token_ids == together[1].token_ids


def test_same_seed_same_tokens(itself: Any, demo: Any) -> None:
    """Sampled, with penalties, in a batch."""
    sampling = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=5)
    ids = [encode(itself.tokenizer, PROMPTS[name]) for name in SOME[:2]]
    expected = demo("none").generate(ids, sampling=sampling, max_new_tokens=NEW)
    got = itself.generate(ids, sampling=sampling, max_new_tokens=NEW)
    assert [output.token_ids for output in got] == [output.token_ids for output in expected]
    if "tli" in itself.drafter.spec:  # its draws share the target's noise
        assert all(output.stats.acceptance_rate > 0.8 for output in got)


def check_pair(plain: Any, model: Any, draft: str, names: Sequence[str], *, exact: bool) -> None:
    """Both ways, greedily and sampled, alone and together: the tokens of plain decoding, and of Transformers."""
    ids = [encode(plain.tokenizer, PROMPTS[name]) for name in names]
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=11)
    greedy = plain.generate(ids, max_new_tokens=NEW)
    sampled = plain.generate(ids, sampling=sampling, max_new_tokens=NEW)
    for mode in ("tli", "slem"):
        llm = plain.using(f"translated:{mode}:{draft}", policy="fixed:4")
        for expected, got in (
            (greedy, llm.generate(ids, max_new_tokens=NEW)),
            (sampled, llm.generate(ids, sampling=sampling, max_new_tokens=NEW)),
        ):
            assert [output.token_ids for output in got] == [output.token_ids for output in expected]
            accepted = sum(output.stats.accepted for output in got)
            assert accepted > len(names), f"{mode}: drafts across these tokenizers are right now and then"
        assert llm.generate(ids[0], max_new_tokens=NEW).token_ids == greedy[0].token_ids
    compare = assert_equal if exact else assert_near
    for name, prompt, output in zip(names, ids, greedy, strict=True):
        compare(model, prompt, transformers_ids(model, prompt, NEW), output.token_ids, name, plain.tokenizer)


@pytest.mark.slow
def test_smollm_drafts_for_gemma(models_folder: Any) -> None:
    """Byte-level BPE and SentencePiece."""
    folder = models_folder / "gemma3-float32"
    model = read_model(folder)
    plain = outrider.load(model, "none", tokenizer=read_tokenizer(folder))
    names = ["story", "russian", "chinese", "arabic", "emoji", "python", "numbers", "french"]
    check_pair(plain, model, str(models_folder / "smollm2-float32"), names, exact=True)


@pytest.mark.slow
def test_smollm_drafts_for_qwen(models_folder: Any) -> None:
    """Two byte-level vocabularies of different sizes, both with ChatML."""
    import torch

    folder = models_folder / "qwen1.5b-bfloat16"
    model = read_model(folder, torch.bfloat16)
    plain = outrider.load(model, "none", tokenizer=read_tokenizer(folder))
    draft = str(models_folder / "smollm2-bfloat16")
    check_pair(plain, model, draft, ["question", "russian", "emoji", "python"], exact=False)
