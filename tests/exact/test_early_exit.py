"""Early exit shares layers, keys and states with verification, and not a bit of the output changes.

Random exits draft nonsense, which is rejected at once and hides mistakes. So the layers behind the exit are made weak:
then drafts are right for many tokens, and yet what those layers add decides near the end.
"""

from __future__ import annotations

from typing import Any

import families
import pytest
import test_dense
import torch
from comparing import assert_equal, transformers_ids
from prompts import PROMPTS
from toy import Table, ToyTarget

import outrider
from outrider import Sampling, native
from outrider.compiled import CompiledTarget
from outrider.dense import DenseTarget
from outrider.drafters import Setting, make_drafter
from outrider.drafters.early_exit import EarlyExit
from outrider.engine import Engine
from outrider.errors import BadOption, UnsupportedModel
from outrider.kv import BLOCK
from outrider.layers import ModuleLayers, layered
from outrider.linear import can_pack
from outrider.policy import Fixed
from outrider.row import Request
from outrider.target import TransformersTarget
from outrider.types import Budget, Scores, Tree
from outrider.verify.match import Match

needs_kernels = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")) or not native.available(),
    reason="no oneDNN or no C++ compiler here: the lean decoder is not used",
)
ASKED = [[5, 6, 7, 5, 6, 7, 5, 6], [3], [(11 * place) % 90 + 2 for place in range(40)]]
NEW = 30
UNIFORM = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "mixtral", "phi3", "deepseek3"]
OTHERS = ["gpt2", "opt", "cohere2"]


def weakened(model: Any, layers: int, share: float) -> Any:
    """The same with only a share of what the layers from this one on add."""
    for layer in model.get_decoder().layers[layers:]:
        for parameter in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            parameter.data.mul_(share)
        for norm in ("post_attention_layernorm", "post_feedforward_layernorm"):
            if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma's norms behind its blocks undo the scaling
                getattr(layer, norm).weight.data.add_(1).mul_(share).sub_(1)
    return model


def endless(family: str, layers: int = 1, share: float = 0.05) -> Any:
    """A small model of a family, weak behind the exit, whose texts do not end by themselves."""
    model = weakened(test_dense.build(family), layers, share)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    return model


def lean(family: str, layers: int = 1, share: float = 0.05) -> Any:
    """The same on the lean decoder."""
    llm = outrider.load(endless(family, layers, share), "none", policy="fixed:6")
    assert isinstance(llm.target, DenseTarget)
    return llm


@needs_kernels
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", test_dense.FAMILIES)
def test_a_pass_in_two_parts_is_the_pass(family: str, layers: int) -> None:
    """Logits and states bit by bit: a ragged batch with a tree, at once; a chain, token by token."""
    target = DenseTarget(TransformersTarget(test_dense.build(family)), free=False)
    ids = torch.randint(0, 97, (40,)).tolist()
    trees = [Tree(torch.tensor([5, 6, 7, 8]), torch.tensor([-1, 0, 0, 1])), Tree.chain(ids[20:22])]
    taps = tuple(range(layers, 4))
    whole = target.forward(trees, test_dense.prefilled(target, [ids, ids[:20]]), taps=taps)
    cache = test_dense.prefilled(target, [ids, ids[:20]])
    parts = target.upper(trees, cache, target.lower(trees, cache, layers), layers, taps)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert all(torch.equal(one.hidden[tap], other.hidden[tap]) for tap in taps)

    chain, cache = ids[20:26], test_dense.prefilled(target, [ids[:20]])
    (expected,) = target.forward([Tree.chain(chain)], cache)
    cache, states = test_dense.prefilled(target, [ids[:20]]), []
    for token in chain:
        states += target.lower([Tree.chain([token])], cache, layers)
        cache.keep([(0,)])
    cache.crop(0, 20)
    (got,) = target.upper([Tree.chain(chain)], cache, [torch.cat(states)], layers)
    assert torch.equal(got.logits, expected.logits)


@needs_kernels
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3"])
def test_same_tokens_as_plain_decoding(family: str, layers: int) -> None:
    """Greedily and sampled, together and alone, past windows; drafts are accepted in long blocks and rejected too."""
    llm = lean(family, layers)
    fast = llm.using(f"early_exit:{layers}")
    accepted, rejected = 0, 0
    for sampling in (Sampling(), Sampling(temperature=0.9, repetition_penalty=1.2, seed=4)):
        expected = llm.generate(ASKED, sampling=sampling, max_new_tokens=NEW)
        outputs = fast.generate(ASKED, sampling=sampling, max_new_tokens=NEW)
        for prompt, one, other in zip(ASKED, expected, outputs, strict=True):
            assert other.token_ids == one.token_ids
            assert fast.generate(prompt, sampling=sampling, max_new_tokens=NEW).token_ids == one.token_ids
            accepted = max(accepted, *(round_.accepted for round_ in other.rounds))
            rejected += sum(round_.accepted < round_.drafted for round_ in other.rounds)
    assert accepted >= 3
    assert rejected


@needs_kernels
@pytest.mark.parametrize("k", [1, 5, 20])
def test_layers_that_add_nothing(k: int) -> None:
    """The exit is the target then: everything is accepted, block after block, with the target's own noise too."""
    fast = lean("llama", 1, 0.0).using("early_exit:1", policy=f"fixed:{k}")
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=3)):
        for output in fast.generate(ASKED, sampling=sampling, max_new_tokens=42):
            assert output.stats.acceptance_rate == 1


class Watched(EarlyExit):
    """Keeps the target's logits for every committed token."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[torch.Tensor] = []

    def commit(self, state: Any, tokens: Any, scores: Scores, path: Any) -> None:
        """See `Drafter`."""
        super().commit(state, tokens, scores, path)
        self.seen.append(scores.at(path).logits)


@needs_kernels
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_bits_on_the_demo_model(demo_folder: Any, kind: str) -> None:
    """The logits of every committed token are those of single passes, in each kind of weights."""
    target = test_dense.lean(demo_folder, kind)
    drafter = Watched(target, 29)
    engine = Engine(target, drafter, Match(), lambda: Fixed(4))
    ids = torch.randint(5, 40000, (60,)).tolist()
    row = engine.add(Request(tuple(ids), Sampling(), 0, 24))
    while engine.active:
        engine.step()
    cache = test_dense.prefilled(target, [ids[:-1]])
    for place, logits in enumerate(torch.cat(drafter.seen)):
        (single,) = target.forward([Tree.chain([row.tokens[59 + place]])], cache)
        cache.keep([(0,)])
        assert torch.equal(single.logits[0], logits), place
    assert len(drafter.seen) < 24


@needs_kernels
def test_no_layer_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the prompt the lower layers see each node once, the upper ones once, and no whole pass is made."""
    llm = lean("llama", 2)
    engine = Engine(llm.target, EarlyExit(layered(llm.target), 2), Match(), lambda: Fixed(4))
    for prompt in ASKED[::2]:
        engine.add(Request(tuple(prompt), Sampling(), 0, 12))
    runs: list[tuple[range, int]] = []
    blocks = DenseTarget._blocks

    def spy(self: DenseTarget, nodes: Any, cache: Any, hidden: Any, which: range, taps: Any) -> Any:
        runs.append((which, max(nodes.sizes)))
        return blocks(self, nodes, cache, hidden, which, taps)

    monkeypatch.setattr(DenseTarget, "_blocks", spy)
    engine.step()
    assert runs == [*[(range(2), 1)] * 5, (range(2, 3), 5)]


@needs_kernels
def test_rows_that_join_and_leave_and_a_cache_that_grows() -> None:
    """Requests come while others are under way, at both sides of the slots that were allocated."""
    llm = lean("llama", 2)
    asked = [Request((*ASKED[2] * 13,)[: BLOCK - 30 * n - 12], Sampling(), n, 40) for n in range(2)]
    asked += [Request((4, n), Sampling(), n, 12 + n) for n in range(2)]
    expected = [llm.generate(list(r.prompt), max_new_tokens=r.max_new_tokens).token_ids for r in asked]
    engine = Engine(llm.target, EarlyExit(layered(llm.target), 2), Match(), lambda: Fixed(7))
    rows = []
    for request in asked:
        rows.append(engine.add(request))
        engine.step()
    while engine.active:
        for row, _ in engine.step():
            if row is rows[1] and len(row.output) > 20:
                engine.remove(row)
    for row, right in zip(rows, expected, strict=True):
        assert row.output == (right[: len(row.output)] if row is rows[1] else right)


@needs_kernels
def test_a_draft_that_is_broken_off_leaves_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts run in the target's own cache. One that fails there in the middle, for one row, is as if it had not been;
    the other rows write what they would have written."""
    llm = lean("llama", 2)
    asked = [Request(tuple(ids), Sampling(), 0, 14) for ids in (ASKED[0], ASKED[2], ASKED[1])]
    expected = [llm.generate(list(r.prompt), max_new_tokens=r.max_new_tokens).token_ids for r in asked]
    drafter = EarlyExit(layered(llm.target), 2)
    engine = Engine(llm.target, drafter, Match(), lambda: Fixed(4))
    rows = [engine.add(request) for request in asked]
    feed = EarlyExit._feed

    def fragile(self: EarlyExit, tokens: Any, cache: Any) -> Any:
        lowered = feed(self, tokens, cache)
        seat = rows[1].state.seat
        if rows[1].rounds == 2 and seat.cache is cache and seat.row in tokens and cache.lengths[0] % 3:
            raise RuntimeError("in the middle")
        return lowered

    monkeypatch.setattr(EarlyExit, "_feed", fragile)
    while engine.active:
        engine.step()
    assert str(rows[1].error) == "in the middle"
    assert [rows[0].output, rows[2].output] == [expected[0], expected[2]]


@needs_kernels
def test_the_context_ends() -> None:
    """Up to its last position, beside a row with more room."""
    model = endless("llama")
    model.config.max_position_embeddings = 48
    llm = outrider.load(model, "early_exit:1", policy="fixed:20")
    for prompt, output in zip(ASKED, llm.generate(ASKED, max_new_tokens=100), strict=True):
        assert len(prompt) + len(output.token_ids) == 48
        assert output.token_ids == llm.using("none").generate(prompt, max_new_tokens=100).token_ids


@needs_kernels
def test_a_reused_prefix() -> None:
    """A prompt that begins like a finished request: its keys were kept, and drafting goes on from them."""
    model = endless("llama")
    llm = outrider.load(model, "early_exit:1", policy="fixed:6")
    first = llm.generate(ASKED[2], max_new_tokens=20)
    longer = [*ASKED[2], *first.token_ids, 7, 8]
    output = llm.generate(longer, max_new_tokens=20)
    assert output.reused > 40
    assert output.token_ids == outrider.load(model, "none").generate(longer, max_new_tokens=20).token_ids


@pytest.mark.parametrize("family", UNIFORM)
def test_transformers_modules_that_are_a_list(family: str) -> None:
    """Layer by layer they give the model's own greedy ids, in a ragged batch."""
    model = families.make(family)
    llm = outrider.load(model, "early_exit:2", policy="fixed:4", fast=False)
    prompts = families.prompts(9, 1, 30)
    for prompt, output in zip(prompts, llm.generate(prompts, max_new_tokens=20), strict=True):
        assert_equal(model, prompt, transformers_ids(model, prompt, 20), output.token_ids, family)
        assert any(round_.drafted for round_ in output.rounds)


def test_transformers_modules_share_their_work() -> None:
    """With layers that add nothing the exit is the target: whole blocks are accepted."""
    model = weakened(families.make("qwen2"), 1, 0.0)
    llm = outrider.load(model, "early_exit:1", policy="fixed:5", fast=False)
    assert isinstance(llm.drafter._target, ModuleLayers)
    for output in llm.generate(families.prompts(9, 2), max_new_tokens=25):
        assert output.stats.acceptance_rate == 1


@pytest.mark.parametrize("family", OTHERS)
def test_modules_that_are_no_plain_list_are_refused(family: str) -> None:
    """By name, at load, and nothing else is raised."""
    model = families.make(family)
    with pytest.raises(UnsupportedModel, match=r"cannot be taken apart into layers \(.*\): choose another drafter\."):
        outrider.load(model, "early_exit:1", fast=False)


@pytest.mark.parametrize("exit_", ["0", "3", "30", "-1", "two", "", "1.5"])
def test_layers_that_are_not_there(exit_: str) -> None:
    model = families.make("llama")
    with pytest.raises(BadOption, match=r"early_exit:E"):
        outrider.load(model, f"early_exit:{exit_}")


def test_a_compiled_target_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"'compiled' cannot be taken apart into layers: leave out .*compile"):
        layered(CompiledTarget(TransformersTarget(families.make("llama")), backend="eager"))


def test_a_foreign_target_is_refused() -> None:
    setting = Setting(ToyTarget(Table(3)), None, lambda name: (ToyTarget(Table(3)), None))
    setting.target.build = "toy"
    with pytest.raises(UnsupportedModel, match="'toy' cannot be taken apart"):
        make_drafter("early_exit:1", setting)


def test_it_says_that_it_is_slow() -> None:
    """Once in the configuration, with what to do."""
    llm = outrider.load(families.make("llama"), "early_exit:1")
    assert "train an exit" in llm.configuration["note"]
    assert llm.configuration["drafter"] == "early_exit:1"
    assert "note" not in llm.using("lookup").configuration


def test_budgets_and_stops() -> None:
    """Rows of a batch have their own depths; a draft ends behind the token at which it is told to stop."""
    llm = outrider.load(families.make("llama"), "early_exit:1", fast=False)
    engine = Engine(llm.target, llm.drafter, Match(), lambda: Fixed(3))
    rows = [engine.add(Request(tuple(prompt), Sampling(), 0, 9)) for prompt in ASKED]
    engine.step()
    seen: list[tuple[float, int]] = []

    def stop(law: torch.Tensor, token: int) -> bool:
        seen.append((float(law.sum()), int(law.argmax()) - token))
        return len(seen) == 2

    def propose(*budgets: Budget) -> Any:
        return llm.drafter.propose([row.state for row in rows], budgets, [Sampling()] * 3, [None] * 3)

    drafts = propose(Budget(0), Budget(5, stop=stop), Budget(2))
    assert [len(draft.tree) for draft in drafts] == [1, 3, 3]
    assert [difference for _, difference in seen] == [0, 0], "the law is that of the token, greedy or not"
    assert all(total == pytest.approx(1) for total, _ in seen)
    assert [row.state.seat.length for row in rows] == [len(row.tokens) - 1 for row in rows], "nothing is committed"
    for one, other in zip(propose(Budget(0), Budget(2), Budget(2)), drafts, strict=True):
        assert torch.equal(one.tree.tokens, other.tree.tokens), "a second draft in the place of the first"


@needs_kernels
def test_the_demo_model(demo: Any, demo_model: Any, demo_writes: Any) -> None:
    """A real model, several scripts, greedily against Transformers."""
    llm = demo("none").using("early_exit:29", policy="fixed:3")
    ids = [llm.tokenizer(PROMPTS[name])["input_ids"] for name in ("story", "russian", "emoji")]
    for prompt, output in zip(ids, llm.generate(ids, max_new_tokens=16), strict=True):
        assert_equal(demo_model, prompt, demo_writes(prompt, 16), output.token_ids, "early exit")
    assert output.stats.accepted
