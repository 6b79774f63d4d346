"""What there is to choose from: each way to draft, what it needs, what it adds to the memory. Knows no situation.

What a method is worth by itself are the published speeds where it fits: EAGLE-3 and DFlash above 4, EAGLE-2 and MTP
about 2, Medusa 1.7 (Spec-Bench and the papers; docs/choosing.md says where from).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .shape import Shape

TENTH = 10  # an independent draft model should be at least an order of magnitude smaller (Hugging Face)
HEADS = 4  # of Medusa
DRAFT_VOCABULARY = 8192  # tokens that a trained head drafts, unless more are asked for
_DFLASH_LAYERS, _DFLASH_TAPS, _EAGLE3_TAPS = 3, 5, 3


@dataclass(frozen=True, slots=True)
class Scene:
    """What memory depends on.

    Attributes:
        target: its sizes.
        draft: those of the small model, where one was named.
        tokens: in the caches altogether, rows times context.
    """

    target: Shape
    draft: Shape | None
    tokens: int


def _nothing(scene: Scene) -> float:
    return 0


def _small_model(scene: Scene) -> float:
    if scene.draft is not None:
        return scene.draft.weights + scene.draft.cache(scene.tokens)
    return (scene.target.weights + scene.target.cache(scene.tokens)) / TENTH


def _mtp(scene: Scene) -> float:
    target, layers = scene.target, max(1, scene.target.mtp_layers)
    return layers * (2 * target.width**2 + target.layer) * target.bytes + target.layer_cache(scene.tokens, layers)


def _medusa(scene: Scene) -> float:
    width = scene.target.width
    return (HEADS * (width**2 + width) + _output(scene)) * scene.target.bytes


def _eagle(scene: Scene) -> float:
    target = scene.target
    weights = 2 * target.width**2 + target.width + target.layer + _output(scene)
    return weights * target.bytes + target.layer_cache(scene.tokens)


def _eagle3(scene: Scene) -> float:
    target = scene.target
    wider = target.attention * target.width  # queries, keys and values read the embedding beside the state
    weights = _EAGLE3_TAPS * target.width**2 + target.layer + wider + _output(scene)
    return weights * target.bytes + target.layer_cache(scene.tokens)


def _dflash(scene: Scene) -> float:
    target = scene.target
    weights = _DFLASH_TAPS * target.width**2 + _DFLASH_LAYERS * target.layer + _output(scene)
    return weights * target.bytes + target.layer_cache(scene.tokens, _DFLASH_LAYERS)


def _output(scene: Scene) -> int:
    return min(DRAFT_VOCABULARY, scene.target.vocabulary) * scene.target.width


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft.

    Attributes:
        name: its own, in the rules.
        drafter: what it is called in specs; a method whose drafter does not exist is not recommended.
        title: for people.
        spec: of the drafter. SMALL and HEAD stand for what has to be filled in, SECOND for the drafter `model` or,
            where the small model has another tokenizer, `translated`.
        worth: by itself, before anything is known of the situation.
        memory: bytes that it adds to the target's.
        adds: the same in words.
        remark: what its user should know besides; empty if nothing.
        train: the argument of `outrider train` that makes it, or empty.
    """

    name: str
    drafter: str
    title: str
    spec: str
    worth: int
    memory: Callable[[Scene], float]
    adds: str
    remark: str = ""
    train: str = ""


_ANEW = "it has to be trained anew whenever the target changes"
_TWO_MODELS = "both models: weights, keys and values"
_TOKENS = "nothing but the tokens, some tens of megabytes at most"

METHODS: tuple[Method, ...] = (
    Method("suffix", "suffix", "what followed before, by counts", "suffix", 1, _nothing, _TOKENS),
    Method("lookup", "lookup", "n-grams of the prompt", "lookup", 0, _nothing, _TOKENS),
    Method(
        "reference", "reference", "a text that you expect", "reference", 0, _nothing, _TOKENS,
        "it needs the expected text with each request (--prediction)",
    ),
    Method("recycle", "recycle", "what the target thought likely", "recycle", 0, _nothing, _TOKENS),
    Method("lookahead", "lookahead", "guesses of the target's own (Jacobi)", "lookahead", 0, _nothing, _TOKENS),
    Method(
        "model", "model", "an independent draft model", "model:SMALL", 1, _small_model, _TWO_MODELS,
        "it should be ten times smaller than the target, and may stand on another device",
    ),
    Method(
        "translated", "translated", "a draft model with another tokenizer", "translated:SMALL", 0, _small_model,
        _TWO_MODELS, "its drafts are cut anew, which costs time and acceptance",
    ),
    Method(
        "distilled", "model", "a draft model distilled from the target", "model:HEAD", 2, _small_model, _TWO_MODELS,
        _ANEW, train="draft",
    ),
    Method(
        "early_exit", "early_exit", "the target's first layers", "early_exit:E", 0, _nothing, "nothing",
        "it pays only for targets that were trained for early exits, as LayerSkip models are, or with an exit that was "
        "trained for this target (outrider train exit)",
    ),
    Method("mtp", "mtp", "layers of the checkpoint that predict several tokens", "mtp", 2, _mtp, "those layers"),
    Method(
        "medusa", "medusa", "Medusa: heads on the target", "medusa:HEAD", 1, _medusa, "the heads",
        f"its accuracy falls with every token, so 3 to 5 ahead are all; {_ANEW}", train="medusa",
    ),
    Method(
        "eagle", "eagle", "EAGLE: a layer on the target's states", "eagle:HEAD", 2, _eagle,
        "one layer; embedding and output are the target's", _ANEW, train="eagle",
    ),
    Method(
        "eagle3", "eagle3", "EAGLE-3: a layer on states of three depths", "eagle3:HEAD", 3, _eagle3,
        "one layer and a small output; the embedding is the target's", _ANEW, train="eagle3",
    ),
    Method(
        "dflash", "dflash", "DFlash: a whole block in one pass", "dflash:HEAD", 3, _dflash,
        "three layers; embedding and output are the target's", _ANEW, train="dflash",
    ),
    Method(
        "cascade", "cascade", "copies where they promise more, else a draft model", "cascade:suffix,SECOND:SMALL", 1,
        _small_model, _TWO_MODELS,
    ),
)  # fmt: skip
