"""A draft model with another vocabulary, on toy targets whose tokens are letters: tokens, laws, states, refusals."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from alphabets import Alphabet, byte_level, sentence_piece
from test_engine import SAMPLED, TABLE, VOCABULARY, engine_with, requests, serve, written
from toy import Context, Table, ToyTarget

from outrider.drafters import Setting, make_drafter
from outrider.drafters.transcript import Pairing
from outrider.drafters.translated import Translated
from outrider.errors import BadOption, VocabularyMismatch
from outrider.noise import SeededNoise
from outrider.policy import Fixed
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.tree import is_chain
from outrider.types import Budget, Scores

LETTERS = Alphabet("abcde")
SHUFFLED = ["e", "c", "a", "b", "d"]
OTHER = ["c", "x", "e", "a", "b", "ab", "dd"]
PHRASES = [*"edcba", *(one + other for one in "abcde" for other in "abcde")]


def pairing(tokens: Sequence[str | None], lead: bool = False) -> Pairing:
    """The letters with these tokens of a draft model, which may put a token of its own before every text."""
    draft = Alphabet(tokens)
    draft.lead = 0 if lead else None
    return Pairing(LETTERS, draft, (), (), (VOCABULARY, len(tokens)))


class Told(Table):
    """The target's own law, as far as shared tokens go, over the draft model's ids."""

    def __init__(self, pairing: Pairing) -> None:
        super().__init__(len(pairing.shared))
        self._shared = pairing.shared.tolist()

    def make(self, context: Context) -> Sequence[float]:
        """See `Table`; the draft model's beginning stands for nothing."""
        law = TABLE.law(tuple(self._shared[token] for token in context if self._shared[token] >= 0)).tolist()
        return [law[token] if token >= 0 else 0.0 for token in self._shared]


class TwoAhead(Table):
    """The target's likeliest two letters at once where the draft model has a token for them."""

    def __init__(self, pairing: Pairing) -> None:
        super().__init__(len(pairing.shared))
        self._pieces = pairing.draft

    def make(self, context: Context) -> Sequence[float]:
        """See `Table`."""
        text = b"".join(self._pieces.spelled[token] or b"" for token in context)
        for _ in range(2):
            ids = tuple(LETTERS.ids[bytes([byte])] for byte in text)
            text += LETTERS.spelled[int(TABLE.law(ids).argmax())] or b""
        chosen = self._pieces.ids.get(text[-2:], self._pieces.ids.get(text[-2:-1]))
        return [float(token == chosen) for token in range(self.vocabulary)]


def made(tokens: Sequence[str | None], mode: str, seed: int = 0, **options: Any) -> Translated:
    """A drafter with a draft model that knows nothing of the target."""
    pair = pairing(tokens, **options)
    return Translated(ToyTarget(Table(len(tokens), 40 + seed)), pair, VOCABULARY, mode)


DRAFTERS: dict[str, Callable[[], Translated]] = {
    "tli, the same letters": lambda: made(SHUFFLED, "tli"),
    "tli, some letters": lambda: made(OTHER, "tli"),
    "tli, a beginning": lambda: made([None, *OTHER], "tli", lead=True),
    "slem, some letters": lambda: made(OTHER, "slem"),
    "slem, phrases": lambda: made(PHRASES, "slem"),
    "slem, a beginning": lambda: made([None, *PHRASES], "slem", lead=True),
    "slem, two ahead": lambda: Translated(ToyTarget(TwoAhead(pairing(PHRASES))), pairing(PHRASES), 5, "slem"),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "sampling",
    [SAMPLED, Sampling(), Sampling(temperature=1.1, top_k=4, repetition_penalty=1.3, logit_bias={1: 0.7})],
    ids=["sampled", "greedy", "penalties"],
)
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_same_seed_same_tokens(make: Callable[[], Translated], sampling: Sampling, count: int) -> None:
    """Under `match` it writes what plain sampling writes, alone and in company."""
    asked = requests(sampling, count=count)
    rows, rounds = serve(engine_with(make(), depth=3), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert any(round_.drafted for round_ in rounds)


@pytest.mark.parametrize("depth", [1, 4, 20])
@pytest.mark.parametrize("sampling", [SAMPLED, Sampling()], ids=["sampled", "greedy"])
@pytest.mark.parametrize(("tokens", "lead"), [(SHUFFLED, False), ([None, *SHUFFLED], True)])
def test_the_target_itself_in_other_ids(tokens: Any, lead: bool, sampling: Sampling, depth: int) -> None:
    """Same law, same noise under other ids: every draft of shared tokens is accepted to its end."""
    pair = pairing(tokens, lead)
    asked = requests(sampling, length=41)
    rows, rounds = serve(engine_with(Translated(ToyTarget(Told(pair)), pair, VOCABULARY, "tli"), depth), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert all(round_.accepted == round_.drafted for round_ in rounds)
    assert max(round_.drafted for round_ in rounds) == depth


@pytest.mark.parametrize("depth", [1, 4, 20])
def test_phrases_that_the_target_will_write(depth: int) -> None:
    """Two letters a token: the text comes back letter by letter, cut to the budget, and is accepted to its end."""
    asked = requests(Sampling(), length=41)
    rows, rounds = serve(engine_with(DRAFTERS["slem, two ahead"](), depth), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert all(round_.accepted == round_.drafted for round_ in rounds)
    assert max(round_.drafted for round_ in rounds) == depth


def test_the_law_of_shared_tokens() -> None:
    """q is the draft model's law without what is not shared, renormalised, in the target's ids."""
    drafter, sampling = made(OTHER, "tli"), Sampling(temperature=1.0)
    state = drafter.begin((0, 1, 2), {})
    (draft,) = drafter.propose([state], [Budget(4)], [sampling], [SeededNoise.for_draft(0, 0, False)])
    assert draft.probs is not None
    assert draft.drawn == "iid"
    assert draft.tree.tokens[0] == 2
    told = state.transcript.ids
    known = {2: 0, 4: 2, 0: 3, 1: 4}  # the target's c, e, a, b -> the draft model's
    for law, token in zip(draft.probs, draft.tree.tokens[1:].tolist(), strict=True):
        own = Table(len(OTHER), 40).law(tuple(told)).float()
        expected = torch.zeros(VOCABULARY)
        for target, draft_id in known.items():
            expected[target] = own[draft_id]
        torch.testing.assert_close(law, expected / expected.sum())
        assert law[token] > 0
        told = [*told, known[token]]


def test_trees_of_shared_tokens() -> None:
    """Where the budget asks for them: the draft model's own tree, node by node, and what its nodes were drawn from."""
    drafter = made(SHUFFLED, "tli")
    asked = requests(SAMPLED, length=20)
    engine = engine_with(drafter)
    engine._make_policy = lambda: Branches()
    rows, rounds = serve(engine, asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert any(not is_chain(round_.tree.parents) for round_ in rounds)
    text = made(PHRASES, "slem")
    state = text.begin((0, 1), {})
    (draft,) = text.propose([state], [Budget(3, 9)], [SAMPLED], [SeededNoise.for_draft(0, 0, True)])
    assert is_chain(draft.tree.parents)


class Branches(Fixed):
    """Asks for trees."""

    def __init__(self) -> None:
        super().__init__(3)

    def budget(self) -> Budget:
        """See `Policy`."""
        return Budget(3, 9)


def test_text_drafts_have_no_law() -> None:
    """What was drafted as text is a point mass under every temperature."""
    drafter = made(PHRASES, "slem")
    states = [drafter.begin((0, 1, 2), {}) for _ in range(2)]
    noises = [SeededNoise.for_draft(0, 0, True)] * 2
    drafts = drafter.propose(states, [Budget(3)] * 2, [Sampling(temperature=t) for t in (0.0, 1.0)], noises)
    assert drafts[0].probs is drafts[1].probs is None
    assert drafts[0].drawn == "point"
    assert len(drafts[0].tree) == 4


@pytest.mark.parametrize("name", DRAFTERS)
def test_rounds_without_being_asked(name: str) -> None:
    """However many commits went by, the next draft is that of a fresh state."""
    drafter = DRAFTERS[name]()
    state, text = drafter.begin((0, 1), {}), [0, 1]
    noise = SeededNoise.for_draft(0, 0, True)
    for block in ([3], [2, 2, 4], [1], [0, 3]):
        asked = [drafter.begin(tuple(text), {}), state] if len(text) % 2 else []
        if asked:
            drafts = drafter.propose(asked, [Budget(3)] * 2, [Sampling()] * 2, [noise] * 2)
            assert torch.equal(drafts[0].tree.tokens, drafts[1].tree.tokens)
        drafter.commit(state, block, Scores(torch.zeros(len(block), VOCABULARY)), range(len(block)))
        text += block
    drafts = [
        drafter.propose([one], [Budget(5)], [Sampling()], [noise])[0] for one in (state, drafter.begin(tuple(text), {}))
    ]
    assert torch.equal(drafts[0].tree.tokens, drafts[1].tree.tokens)
    assert len(drafts[0].tree) > 1 or name == "slem, some letters"  # it goes on with a letter that only it has


@pytest.mark.parametrize("name", ["tli, a beginning", "slem, phrases"])
def test_the_draft_models_context_ends(name: str) -> None:
    """It counts in its own tokens; past it there are plain steps."""
    drafter = DRAFTERS[name]()
    drafter._inner._model.context = 9
    asked = requests(length=20)
    rows, rounds = serve(engine_with(drafter), asked)
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert any(round_.drafted for round_ in rounds)
    assert any(not round_.drafted for round_ in rounds)


def test_two_targets_share_a_draft_model() -> None:
    """In turn, round by round, each writes what it writes alone, and the model is what it was."""
    model = ToyTarget(Table(len(OTHER), 40))
    before = dict(vars(model))
    engines = [engine_with(Translated(model, pairing(OTHER), VOCABULARY, mode)) for mode in ("tli", "slem")]
    asked = requests(length=20, count=2)
    rows = [engine.add(request) for engine, request in zip(engines, asked, strict=True)]
    while any(engine.active for engine in engines):
        for engine in engines:
            engine.step()
    assert [row.output for row in rows] == [written(request) for request in asked]
    assert {**vars(model), "passes": 0} == {**before, "passes": 0}


def test_ends_are_drafted() -> None:
    """The draft model's end comes back as the target's, and the target's is told as the draft model's."""
    target, draft = Alphabet(["a", "b", None]), Alphabet([None, "b", "a"])
    for mode in ("tli", "slem"):
        pair = Pairing(target, draft, (2,), (0,), (3, 3))

        class Ending(Table):
            """Always the end."""

            def make(self, context: Context) -> Sequence[float]:
                """See `Table`."""
                return [1.0, 0.0, 0.0]

        drafter = Translated(ToyTarget(Ending(3)), pair, 3, mode)
        state = drafter.begin((0, 2, 1), {})
        assert state.transcript.ids == [2, 0, 1]
        (draft_,) = drafter.propose([state], [Budget(1)], [Sampling()], [SeededNoise.for_draft(0, 0, True)])
        assert draft_.tree.tokens.tolist() == [1, 2]


@pytest.fixture(scope="module")
def setting() -> Setting:
    """A target with a byte-level tokenizer; draft models with one like it, one unlike it, or none."""
    tokenizer, near = byte_level(258), byte_level(300)
    letters = random.Random(0).choices(string.ascii_lowercase + " ", k=40_000)
    far = sentence_piece(2000, texts=["".join(letters)])
    loads = {"near": near, "far": far, "bare": None}
    sizes = {"near": len(near), "far": len(far), "bare": 100}

    def load(name: str) -> Any:
        return ToyTarget(Table(sizes[name], 1)), loads[name]

    return Setting(ToyTarget(Table(len(tokenizer), 2)), tokenizer, load)


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("translated:near", "tli"),
        ("translated:auto:near", "tli"),
        ("translated:slem:near", "slem"),
        ("translated:far", "slem"),
        ("translated:tli:far", "tli"),
    ],
)
def test_auto_chooses_by_coverage_and_says_so(setting: Setting, spec: str, chosen: str) -> None:
    drafter = make_drafter(spec, setting)
    assert isinstance(drafter, Translated)
    direct = chosen == "tli"
    assert (drafter.has_law, drafter.makes_trees, drafter.reencodes) == (direct, direct, not direct)
    name = spec.rpartition(":")[2]
    assert drafter.spec == f"translated:{chosen}:{name}"
    assert f"{drafter._pairing.coverage:.0%} of the draft model's tokens" in drafter.note
    assert chosen in drafter.note
    assert ("chosen because" in drafter.note) == (spec.count(":") == 1 or "auto" in spec)
    ids = setting.tokenizer("The fox jumps")["input_ids"]
    rows, _ = serve(engine_with(drafter, target=setting.target), [Request(tuple(ids), Sampling(), 0, 6)])  # type: ignore[arg-type]
    assert rows[0].output == written(Request(tuple(ids), Sampling(), 0, 6), table=setting.target.table)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spec", ["translated", "translated:", "translated:tli", "translated:slem:"])
def test_no_draft_model_is_named(setting: Setting, spec: str) -> None:
    with pytest.raises(BadOption, match="needs a draft model: write translated:MODEL"):
        make_drafter(spec, setting)


def test_tokenizers_are_needed(setting: Setting) -> None:
    with pytest.raises(BadOption, match="the target's tokenizer"):
        make_drafter("translated:near", Setting(setting.target, None, setting.load_model))
    with pytest.raises(BadOption, match="draft model's tokenizer, and bare has none"):
        make_drafter("translated:bare", setting)


def test_nothing_is_shared() -> None:
    """`tli` refuses, `auto` drafts text."""
    pair = Pairing(LETTERS, Alphabet("xyz"), (), (), (5, 3))
    with pytest.raises(VocabularyMismatch, match="write translated:slem"):
        Translated(ToyTarget(Table(3, 1)), pair, VOCABULARY, "tli")
    assert Translated(ToyTarget(Table(3, 1)), pair, VOCABULARY).spec == "translated:slem"
