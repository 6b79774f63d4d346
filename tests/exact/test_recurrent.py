"""Heads that go on from their own states: drafts are what the head says, round by round, and outputs the target's.

What a draft ought to be is computed without caches and without the drafter: the head over the whole text at every step,
with a dense mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from torch import Tensor

import outrider
from outrider import Sampling, checkpoints, features
from outrider.checkpoints import Checkpoint, Manifest
from outrider.drafters.trained import identify
from outrider.engine import Engine
from outrider.errors import BadOption, ModelNotFound, UsageError
from outrider.heads.eagle3 import Eagle3Head, Eagle3Shape
from outrider.linear import can_pack
from outrider.policy import Fixed
from outrider.row import Request
from outrider.verify.match import Match

PROMPTS = families.prompts(9, 1, 30, 2)
IDS = torch.tensor(sorted({*range(0, 100, 2), 1, 3, 5, 7}))


def trained(folder: Path, model: Any, *, whole: bool = False, **flags: Any) -> Eagle3Head:
    """Write a random EAGLE-3 head for a model; the head, in float32."""
    llm = outrider.load(model, "none", fast=False)
    taps = features.default_taps(features.depth_of(llm.target))
    ids = torch.arange(llm.target.vocabulary) if whole else IDS
    shape = Eagle3Shape(features.block_shape(llm.target), len(taps), len(ids), **flags)
    torch.manual_seed(3)
    head = Eagle3Head(shape).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    target = identify(llm.target, "tiny")
    manifest = Manifest(
        method="eagle3",
        target=target,
        taps=taps,
        template=None,
        draft_vocabulary=len(ids),
        shape=dataclasses.asdict(shape),
    )
    checkpoints.write(folder, Checkpoint(manifest, head.trained(), ids), checkpoints.card(manifest, {}))
    return head


class Reference:
    """The head over a whole text, without caches, or over all of it but the first slots."""

    def __init__(self, llm: Any, head: Eagle3Head, ids: Tensor, skipped: int = 0) -> None:
        self.llm, self.head, self.ids, self.skipped = llm, head, ids, skipped
        self.taps = llm.drafter.taps

    @torch.no_grad()
    def states(self, text: Sequence[int]) -> Tensor:
        """[1, len - 1, D] fused, at all tokens but the last."""
        tree = outrider.Tree.chain(list(text))
        (scores,) = self.llm.target.forward([tree], self.llm.target.new_cache(), taps=self.taps)
        return self.head.fuse(features.side_by_side(scores.hidden, self.taps)[None, :-1])

    @torch.no_grad()
    def law(self, text: Sequence[int], drafted: Sequence[int]) -> Tensor:
        """[V] probabilities after a text and a draft behind it."""
        inputs = self.states(text)
        for step in range(len(drafted) + 1):
            tokens = torch.tensor([[*text, *drafted[:step]][1:]])
            size = tokens.shape[1]
            embedded = features.embedding(self.llm.target)(tokens)
            read = slice(self.skipped, None)
            out = self.head(embedded[:, read], inputs[:, read], torch.arange(size)[None, read], causal)
            inputs = torch.cat([inputs, out[:, -1:]], 1)
        logits = torch.full((100,), -torch.inf)
        logits[self.ids] = self.head.logits(out[0, -1])
        return logits.softmax(-1)

    def chain(self, text: Sequence[int], length: int) -> list[int]:
        """The greedy draft behind a text."""
        drafted: list[int] = []
        for _ in range(length):
            drafted.append(int(self.law(text, drafted).argmax()))
        return drafted


def causal(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over the whole text."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


def load(model: Any, folder: Path, policy: str = "fixed:4", verifier: str = "match", fast: bool = False) -> Any:
    """The target with the head of a folder."""
    return outrider.load(model, f"eagle3:{folder}", verifier, policy, fast=fast)


@pytest.mark.parametrize("flags", [{}, {"fc_norm": False}, {"norm_output": True}, {"whole": True}], ids=str)
def test_drafts_are_what_the_head_says(tmp_path: Path, flags: dict[str, bool]) -> None:
    """In a ragged batch, whatever was accepted."""
    model = families.make("llama")
    head = trained(tmp_path, model, **flags)
    llm = load(model, tmp_path)
    reference = Reference(llm, head, torch.arange(100) if flags.get("whole") else IDS)
    seen = 0
    for output in llm.generate(PROMPTS, max_new_tokens=12):
        assert output.token_ids == llm.using("none").generate(output.prompt_ids, max_new_tokens=12).token_ids
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            assert round_.drafted or len(text) == 1 or round_.start == len(output.prompt_ids) + 11
            seen += round_.drafted
            assert round_.tree.tokens[1:].tolist() == reference.chain(text, round_.drafted)
    assert seen > 50


def test_trees_are_the_likeliest_paths(tmp_path: Path) -> None:
    """At temperature 0: no path outside the tree is likelier than a leaf in it, by the head over the whole text."""
    model = families.make("llama")
    reference_head = trained(tmp_path, model)
    llm = load(model, tmp_path, "fixed:3,7")
    reference = Reference(llm, reference_head, IDS)
    for output in llm.generate(PROMPTS[:3], max_new_tokens=6):
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            tree, worth = round_.tree, {0: 1.0}
            paths: dict[int, list[int]] = {0: []}
            laws = {}
            for node in range(1, len(tree)):
                parent = int(tree.parents[node])
                if parent not in laws:
                    laws[parent] = reference.law(text, paths[parent])
                paths[node] = [*paths[parent], int(tree.tokens[node])]
                worth[node] = worth[parent] * float(laws[parent][tree.tokens[node]])
            if len(tree) > 1:
                least = min(worth.values())
                for parent, law in laws.items():
                    kept = [int(t) for n, t in enumerate(tree.tokens) if n and int(tree.parents[n]) == parent]
                    law[kept] = 0
                    assert worth[parent] * float(law.max()) <= least * 1.001


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("policy", ["fixed:4", "fixed:3,7"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_outputs_are_the_targets(tmp_path: Path, family: str, temperature: float, policy: str, fast: bool) -> None:
    """Greedily and with a seed, chains and trees, in a batch: the tokens of plain decoding."""
    model = families.make(family)
    trained(tmp_path, model)
    llm = load(model, tmp_path, policy, fast=fast)
    sampling = Sampling(temperature=temperature, top_p=0.95, repetition_penalty=1.1, seed=5)
    drafted = llm.generate(PROMPTS, sampling=sampling, max_new_tokens=14)
    plain = llm.using("none", policy="fixed:1").generate(PROMPTS, sampling=sampling, max_new_tokens=14)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert sum(output.stats.drafted for output in drafted) > 60


def test_asked_twice(tmp_path: Path) -> None:
    """A second draft in the place of the first is the same, and so are the drafts after it."""
    model = families.make("llama")
    trained(tmp_path, model)
    for policy, nodes in (("fixed:3", 3), ("fixed:3,7", 7)):
        llm = load(model, tmp_path, policy)
        expected = [[r.tree.tokens.tolist() for r in o.rounds] for o in llm.generate(PROMPTS, max_new_tokens=9)]
        engine = Engine(llm.target, llm.drafter, Match(), lambda n=nodes: Fixed(3, n))
        rows = [engine.add(Request(tuple(prompt), Sampling(), 0, 9)) for prompt in PROMPTS]
        seen: list[list[list[int]]] = [[] for _ in rows]
        while active := engine.active:
            budgets = [engine._budget(row) for row in active]
            samplings = [Sampling()] * len(active)
            llm.drafter.propose([row.state for row in active], budgets, samplings, [None] * len(active))
            for row, round_ in engine.step():
                seen[rows.index(row)].append(round_.tree.tokens.tolist())
        assert seen == expected


def test_the_end_of_a_long_prompt_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are what the head says of the last of the target's states alone."""
    monkeypatch.setattr("outrider.drafters.recurrent._READ", 12)
    model = families.make("llama")
    head = trained(tmp_path, model)
    llm = load(model, tmp_path)
    seen = 0
    for output in llm.generate(families.prompts(60, 7), max_new_tokens=9):
        assert output.token_ids == llm.using("none").generate(output.prompt_ids, max_new_tokens=9).token_ids
        reference = Reference(llm, head, IDS, skipped=max(0, len(output.prompt_ids) - 13))
        for round_ in output.rounds:
            text = [*output.prompt_ids, *output.token_ids][: round_.start]
            seen += round_.drafted
            assert round_.tree.tokens[1:].tolist() == reference.chain(text, round_.drafted)
    assert seen > 20


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another target, another method, broken files; each in one sentence."""
    model = families.make("llama")
    trained(tmp_path / "head", model)

    def refusal(kind: type[UsageError], says: str, other: Any = model, spec: str = "") -> None:
        with pytest.raises(UsageError, match=says) as caught:
            outrider.load(other, spec or f"eagle3:{tmp_path / 'head'}", fast=False)
        assert type(caught.value) is kind
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)

    with torch.no_grad():
        strange = families.make("llama")
        strange.model.embed_tokens.weight.mul_(1.5)
    refusal(BadOption, "has other weights", strange)
    refusal(BadOption, "a stack of layers of 3, and this target .* has 4", families.make("llama", num_hidden_layers=4))
    refusal(BadOption, "a vocabulary of 100", families.make("llama", vocab_size=120))
    refusal(BadOption, "write eagle3:FOLDER", spec="eagle3")
    refusal(ModelNotFound, "holds no trained drafter", spec=f"eagle3:{tmp_path}")
    config = tmp_path / "head" / "config.json"
    text = config.read_text()
    for old, new, kind, says in (
        ('"format": 1', '"format": 9', BadOption, "this version reads 1"),
        ('"method": "eagle3"', '"method": "medusa"', BadOption, "write medusa:"),
        ('"intermediate": 48', '"intermediate": 40', ModelNotFound, "do not fit its config.json"),
        ('"intermediate": 48', '"intermediate": -1', ModelNotFound, "every size has to be 1 or more"),
        ('"draft_vocabulary": 54', '"draft_vocabulary": 50', ModelNotFound, "vocabulary map"),
        ('"shape"', '"shapes"', ModelNotFound, "cannot be read"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        refusal(kind, says)
    config.write_text(text)
    weights = tmp_path / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    refusal(ModelNotFound, "check that they are whole")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_bfloat16(tmp_path: Path, dtype: str) -> None:
    """Are multiplied as such where that is fast, whatever the target is in; the tokens stay the target's."""
    model = families.make("llama").to(getattr(torch, dtype))
    trained(tmp_path, model)
    found = checkpoints.read(tmp_path, "eagle3")
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in found.tensors.items()}
    checkpoints.write(tmp_path, dataclasses.replace(found, tensors=narrow), "")
    llm = load(model, tmp_path, fast=True)
    assert (llm.drafter.head.lean is not None) == can_pack(torch.bfloat16, torch.device("cpu"))
    plain, drafted = llm.using("none"), llm.generate(PROMPTS, max_new_tokens=12)
    assert [one.token_ids for one in drafted] == [
        plain.generate(prompt, max_new_tokens=12).token_ids for prompt in PROMPTS
    ]
    keys, _ = llm.drafter.begin(PROMPTS[0], taps_of(llm, PROMPTS[0])).seat.cache.storage(0, 2, (8, 8), torch.empty(0))
    assert keys.dtype == torch.bfloat16


def taps_of(llm: Any, prompt: list[int]) -> dict[int, Tensor]:
    """The states that a drafter begins with: at all tokens but the last."""
    (scores,) = llm.target.forward([outrider.Tree.chain(prompt)], llm.target.new_cache(), taps=llm.drafter.taps)
    return {tap: hidden[:-1] for tap, hidden in scores.hidden.items()}


def test_bytes_of_a_token(tmp_path: Path) -> None:
    """Of its keys, or of the state that waits for them, whichever is more; a server counts on it."""
    model = families.make("llama")
    trained(tmp_path, model)
    llm = load(model, tmp_path)
    prompt = families.prompts(60)[0]
    state = llm.drafter.begin(prompt, taps_of(llm, prompt))
    keys = state.seat.cache.nbytes / state.seat.cache.capacity
    states = sum(hidden.nbytes / len(hidden) for hidden in taps_of(llm, prompt).values())
    assert llm.drafter.token_bytes == max(keys, states)
