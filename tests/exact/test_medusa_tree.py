"""`outrider tree`: the tree that is kept follows from what the heads get right, and the drafter drafts it."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import learning
import pytest
import torch
from loaded import read_model

import outrider as library
from outrider.commands.tree import expected
from outrider.heads.medusa import MedusaHead

COMMON = ["--dtype", "float32", "--offline"]
TRAIN = ["--draft-vocab", "60", "--steps", "30", "--lr", "0.01", "--evaluate-every", "30", "--steps-ahead", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target, and a folder of its answers; one in four is held out."""
    return learning.answered(tmp_path_factory.mktemp("tree"), 16, 24)


@pytest.fixture
def heads(outrider: Any, made: tuple[Path, Path], tmp_path: Path) -> Path:
    """Medusa heads, trained for a moment."""
    target, data = made
    where = ["--target", str(target), "--data", str(data), "--out", str(tmp_path / "heads")]
    assert outrider("train", "medusa", *where, *TRAIN, *COMMON, "--json")[0] == 0
    return tmp_path / "heads"


@torch.no_grad()
def counted(target: Path, data: Path, folder: Path, width: int) -> tuple[list[list[float]], int]:
    """How often each head's r-th likeliest token was right, token by token, by the target's last states."""
    llm = library.load(str(target), f"medusa:{folder}", dtype="float32", offline=True, fast=False)
    model, head = read_model(target), llm.drafter.head
    assert isinstance(head, MedusaHead)
    right, seen = [[0.0] * width for _ in range(3)], 0
    for line in learning.lines(data):
        if not line["held_out"]:
            continue
        text, first = [*line["prompt"], *line["answer"]], len(line["prompt"])
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
        # A slot counts where the token of the last head, four on, is the answer's.
        for slot in range(max(0, first - 4), len(text) - 4):
            seen += 1
            for level, state in enumerate(head(states[slot])):
                ranked = llm.drafter._ids[head.logits(state).topk(width).indices].tolist()
                if text[slot + 2 + level] in ranked:
                    right[level][ranked.index(text[slot + 2 + level])] += 1
    return [[count / seen for count in counts] for counts in right], seen


def test_the_tree_is_the_best_by_what_the_heads_get_right(outrider: Any, made: tuple[Path, Path], heads: Path) -> None:
    """Accuracies as counted one by one; no node left out is worth more than one taken; nothing else has changed."""
    target, data = made
    before = json.loads((heads / "config.json").read_text())
    weights = (heads / "model.safetensors").read_bytes()
    options = ["--nodes", "9", "--width", "4", "--measured-prompts", "2"]
    code, text, _ = outrider(
        "tree", str(heads), "--target", str(target), "--data", str(data), *options, *COMMON, "--json"
    )
    assert code == 0
    told = json.loads(text)
    accuracy, seen = counted(target, data, heads, 4)
    assert told["tokens"] == seen and told["answers"] == 4
    for ours, theirs in zip(told["accuracy"], accuracy, strict=True):
        assert ours == pytest.approx(theirs)

    def worth(path: tuple[int, ...]) -> float:
        result = 1.0
        for level, rank in enumerate(path):
            result *= accuracy[level][rank]
        return result

    ranks = [tuple(path) for path in told["ranks"]]
    every = sorted((worth(p) for size in (1, 2, 3) for p in product(range(4), repeat=size)), reverse=True)
    assert [worth(path) for path in ranks] == pytest.approx([value for value in every if value][:9])
    assert told["expected"]["9"] == pytest.approx(1 + sum(map(worth, ranks)))
    assert told["measured"]["tree"] >= told["measured"]["chain"] >= 1
    after = json.loads((heads / "config.json").read_text())
    assert [tuple(path) for path in after["shape"].pop("ranks")] == ranks
    assert after["training"].pop("tree") == {"nodes": len(ranks), "answers": 4, "tokens": seen}
    before["shape"].pop("ranks")
    assert after == before and (heads / "model.safetensors").read_bytes() == weights
    assert "outrider generate" in (heads / "README.md").read_text()


def test_the_drafter_drafts_it(outrider: Any, made: tuple[Path, Path], heads: Path) -> None:
    """Node for node, and changes no token; on another run the tree is the same, and so it is found unchanged."""
    target, data = made
    options = ["--target", str(target), "--data", str(data), "--nodes", "7", "--measured-prompts", "1", *COMMON]
    told = json.loads(outrider("tree", str(heads), *options, "--json")[1])
    again = json.loads(outrider("tree", str(heads), *options, "--json")[1])
    assert told["changed"] and not again["changed"] and told["ranks"] == again["ranks"]
    llm = library.load(str(target), f"medusa:{heads}", policy="fixed:3,7", dtype="float32", offline=True)
    out = llm.generate([3, 4, 5, 6], max_new_tokens=20)
    assert out.token_ids == llm.using("none", policy="fixed:1").generate([3, 4, 5, 6], max_new_tokens=20).token_ids
    places = {tuple(path): node for node, path in enumerate(told["ranks"], 1)}
    shape = [-1, *(places.get(tuple(path[:-1]), 0) for path in told["ranks"])]
    whole = [round_ for round_ in out.rounds if round_.drafted == len(told["ranks"])]
    assert len(whole) > 2 and all(round_.tree.parents.tolist() == shape for round_ in whole)


def test_a_dry_run_leaves_the_folder(outrider: Any, made: tuple[Path, Path], heads: Path) -> None:
    """It shows what would be kept."""
    target, data = made
    before = (heads / "config.json").read_bytes()
    where = ["--target", str(target), "--data", str(data), "--nodes", "5", "--measured-prompts", "1", "--dry-run"]
    code, text, _ = outrider("tree", str(heads), *where, *COMMON)
    assert code == 0 and (heads / "config.json").read_bytes() == before
    assert "How often each head's likeliest tokens were right" in text and "nothing was written" in text
    assert "acceptance length, measured" in text


def test_what_cannot_be_searched(outrider: Any, made: tuple[Path, Path], heads: Path, tmp_path: Path) -> None:
    """Another method's folder, data of nobody, nothing held out; each in one sentence."""
    target, data = made
    where = ["--target", str(target), *COMMON]

    def refused(says: str, *arguments: str) -> None:
        code, out, err = outrider("tree", *arguments, *where)
        assert code == 2 and out == "" and says in err and len(err.strip().splitlines()) == 1, err

    refused("holds no trained drafter", str(tmp_path), "--data", str(data))
    refused("make them with 'outrider data'", str(heads), "--data", str(tmp_path))
    learning.answers(read_model(target), tmp_path / "all", 3, 12)
    refused("nothing can be measured", str(heads), "--data", str(tmp_path / "all"))


def test_expectations() -> None:
    """One for the target's own token, and the product of accuracies for each node."""
    ranks = ((0,), (0, 0), (1,))
    told = expected([[0.5, 0.25], [0.5, 0.125]], ranks)
    assert told == {"1": 1.5, "2": 1.75, "3": 2.0}
