"""DFlash: drafts are what the head says of a block, round by round, and what it is trained on is what it meets.

What a draft ought to be is computed without caches: the head over the whole text and one block, every key seen by all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from learning import Answer
from torch import Tensor

import outrider
from outrider import Sampling, checkpoints, features
from outrider.checkpoints import Checkpoint, Manifest
from outrider.drafters.trained import identify
from outrider.engine import Engine
from outrider.errors import ModelNotFound
from outrider.heads.dflash import DFlashHead, DFlashShape
from outrider.policy import Fixed
from outrider.row import Request
from outrider.train.corpus import Batch, spare_token
from outrider.train.dflash import anchors
from outrider.verify.match import Match

PROMPTS = families.prompts(9, 1, 30, 2)
IDS = torch.tensor(sorted({*range(0, 100, 2), 1, 3, 5, 7}))
MASK = 99


def trained(folder: Path, model: Any, *, whole: bool = False, fc_norm: bool = True) -> DFlashHead:
    """Write a random head with blocks of six for a model; the head, in float32."""
    llm = outrider.load(model, "none", fast=False)
    taps = features.spread_taps(features.depth_of(llm.target))
    ids = torch.arange(llm.target.vocabulary) if whole else IDS
    shape = DFlashShape(features.block_shape(llm.target), 2, len(taps), len(ids), 6, MASK, fc_norm)
    torch.manual_seed(3)
    head = DFlashHead(shape, features.output(llm.target, ids)).eval()
    for parameter in head.trained().values():
        torch.nn.init.normal_(parameter, std=0.4)
    manifest = Manifest(
        method="dflash",
        target=identify(llm.target, "tiny"),
        taps=taps,
        template=None,
        draft_vocabulary=len(ids),
        shape=dataclasses.asdict(shape),
    )
    checkpoints.write(folder, Checkpoint(manifest, head.trained(), ids), "")
    return head


@torch.no_grad()
def block_after(llm: Any, head: DFlashHead, ids: Tensor, text: Sequence[int]) -> list[int]:
    """The likeliest token of each slot of the block behind a text."""
    taps = llm.drafter.taps
    (scores,) = llm.target.forward([outrider.Tree.chain(list(text))], llm.target.new_cache(), taps=taps)
    fused = head.fuse(features.side_by_side(scores.hidden, taps)[None, :-1])
    size, length = head.shape.size, len(text) - 1
    before = head.keys(fused, torch.arange(length)[None])

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat([old, new], 2) for old, new in zip(before[layer], (key, value), strict=True))
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True).transpose(1, 2)

    block = torch.tensor([[text[-1], *[MASK] * (size - 1)]])
    states = head(features.embedding(llm.target)(block), length + torch.arange(size)[None], attend)
    return [int(token) for token in ids[head.logits(states[0, 1:]).argmax(-1)]]


def load(model: Any, folder: Path, policy: str = "fixed:4", fast: bool = False) -> Any:
    """The target with the head of a folder."""
    return outrider.load(model, f"dflash:{folder}", policy=policy, fast=fast)


@pytest.mark.parametrize("flags", [{}, {"fc_norm": False}, {"whole": True}], ids=str)
@pytest.mark.parametrize("k", [3, 9])
def test_drafts_are_what_the_head_says(tmp_path: Path, k: int, flags: dict[str, bool]) -> None:
    """In a ragged batch, whatever was accepted, and no longer than a block."""
    model = families.make("llama")
    head = trained(tmp_path, model, **flags)
    llm = load(model, tmp_path, f"fixed:{k}")
    seen = 0
    for output in llm.generate(PROMPTS, max_new_tokens=12):
        assert output.token_ids == llm.using("none").generate(output.prompt_ids, max_new_tokens=12).token_ids
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            left = len(output.prompt_ids) + 12 - round_.start
            assert round_.drafted == (0 if len(text) == 1 else min(k, 5, left - 1))
            seen += round_.drafted
            if round_.drafted:
                expected = block_after(llm, head, torch.arange(100) if flags.get("whole") else IDS, text)
                assert round_.tree.tokens[1:].tolist() == expected[: round_.drafted]
    assert seen > 50


@pytest.mark.parametrize("verifier", ["match", "token", "block"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_outputs_are_the_targets(tmp_path: Path, family: str, verifier: str) -> None:
    """Greedily, and with a seed under `match`, in a batch: the tokens of plain decoding."""
    model = families.make(family)
    trained(tmp_path, model)
    llm = load(model, tmp_path, fast=family == "llama").using(verifier=verifier)
    for sampling in (Sampling(), Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=5)):
        drafted = llm.generate(PROMPTS, sampling=sampling, max_new_tokens=14)
        assert sum(output.stats.drafted for output in drafted) > 60
        if verifier == "match" or sampling.temperature == 0:
            plain = llm.using("none", policy="fixed:1").generate(PROMPTS, sampling=sampling, max_new_tokens=14)
            assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]


def test_asked_twice(tmp_path: Path) -> None:
    """A second draft in the place of the first is the same, and so are the drafts after it."""
    model = families.make("llama")
    trained(tmp_path, model)
    llm = load(model, tmp_path)
    expected = [[r.tree.tokens.tolist() for r in o.rounds] for o in llm.generate(PROMPTS, max_new_tokens=9)]
    engine = Engine(llm.target, llm.drafter, Match(), lambda: Fixed(4))
    rows = [engine.add(Request(tuple(prompt), Sampling(), 0, 9)) for prompt in PROMPTS]
    seen: list[list[list[int]]] = [[] for _ in rows]
    while active := engine.active:
        budgets = [engine._budget(row) for row in active]
        llm.drafter.propose([row.state for row in active], budgets, [Sampling()] * len(active), [None] * len(active))
        for row, round_ in engine.step():
            seen[rows.index(row)].append(round_.tree.tokens.tolist())
    assert seen == expected


def test_long_prompts_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafts are those of a prompt that is read at once; keys are as large as the drafter says."""
    model = families.make("llama")
    trained(tmp_path, model)
    llm = load(model, tmp_path)
    prompt = families.prompts(60)[0]
    whole = [r.tree.tokens.tolist() for r in llm.generate(prompt, max_new_tokens=9).rounds]
    monkeypatch.setattr("outrider.drafters.dflash._CHUNK", 7)
    assert [r.tree.tokens.tolist() for r in llm.generate(prompt, max_new_tokens=9).rounds] == whole
    (scores,) = llm.target.forward([outrider.Tree.chain(prompt)], llm.target.new_cache(), taps=llm.drafter.taps)
    state = llm.drafter.begin(prompt, {tap: hidden[:-1] for tap, hidden in scores.hidden.items()})
    assert state.seat.length == 59
    assert state.seat.cache.nbytes == llm.drafter.token_bytes * state.seat.cache.capacity


@pytest.mark.parametrize(("old", "new"), [('"mask": 99', '"mask": -1'), ('"size": 6', '"size": 1')])
def test_shapes_that_cannot_be(tmp_path: Path, old: str, new: str) -> None:
    """Are refused, in one sentence."""
    model = families.make("llama")
    trained(tmp_path, model)
    config = tmp_path / "config.json"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ModelNotFound, match="a block 2 or more, and the mask an id") as caught:
        load(model, tmp_path)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_where_blocks_are_put() -> None:
    """Where the target wrote what follows, as many as asked for, all of them in time, the same ones again."""
    answer = torch.zeros(2, 20, dtype=torch.bool)
    answer[0, 5:20] = True
    answer[1, 9:12] = True
    empty = torch.zeros(2, 20, 1)
    fitting = [set(range(3, 18)), {7, 8, 9}]
    met: list[set[int]] = [set(), set()]
    for seed in range(30):
        batch = Batch(torch.zeros(2, 20, dtype=torch.int64), answer, empty, empty, seed)
        slots, real = anchors(batch, 4)
        assert slots.shape == real.shape == (2, 4) and real.sum(1).tolist() == [4, 3]
        for row in range(2):
            chosen = slots[row][real[row]].tolist()
            assert chosen == sorted(set(chosen)) and set(chosen) <= fitting[row]
            met[row] |= set(chosen)
        again = anchors(batch, 4)
        assert torch.equal(again[0], slots) and torch.equal(again[1], real)
    assert met == fitting
    slots, real = anchors(batch, 1000)
    assert [set(slots[row][real[row]].tolist()) for row in range(2)] == fitting


def test_the_mask() -> None:
    """The highest id that no text has; where all occur, the rarest."""
    texts = [Answer(number=0, prompt=(9, 7), answer=(0, 1, 2, 3, 9), temperature=1.0)]
    assert spare_token(texts, 10) == 8
    assert spare_token(texts, 4) == 3
    assert spare_token([*texts, Answer(number=1, prompt=(3,), answer=(2, 0), temperature=1.0)], 4) == 1


@pytest.mark.parametrize(
    ("depth", "taps"),
    [(30, (2, 8, 15, 22, 28)), (36, (2, 10, 18, 26, 34)), (8, (2, 3, 4, 5, 6)), (3, (1, 2)), (1, (1,))],
)
def test_tapped_layers(depth: int, taps: tuple[int, ...]) -> None:
    """Outputs from the second layer to the last but two: 36 layers are 1, 9, 17, 25, 33 as DFlash counts them."""
    assert features.spread_taps(depth) == taps
