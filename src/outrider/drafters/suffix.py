"""What followed the last tokens before, by its counts: in this request, and in what other requests have written.

Sources: suffix decoding (Oliaro et al., 2411.04975) for the scores, SAM decoding (Hu et al., 2411.10666) for the
automaton. For every length of match the commonest continuation is followed, for at most `factor` tokens per token
matched; the continuation with the highest score, the sum of the chances of its tokens, is drafted. With more nodes in
the budget than its depth it is a tree of the likeliest continuations instead of a path.

A token's chance is the share that it has among what followed, as in suffix decoding, times length / (length + doubt)
for the length of the match: counts alone promise twice what is accepted. In 26 answers of SmolLM2-135M, what had
followed a match without exception came again in 34 % of the cases after one token matched, 61 and 70 % after two and
three, 76 % after four to six, 87 % after seven to twelve and 91 % after more; with a doubt of 1.7 the scores add up
to what was accepted within a twentieth.

What others have written influences drafts only, and a draft never changes a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from torch import Tensor

from ..errors import BadOption
from ..kv import Seat
from ..sampling import Sampling
from ..types import Budget, Draft, Noise, Scores, Tree
from .automaton import LEAST, Automaton
from .base import Drafter, Setting
from .growing import best_first
from .options import number, read_options, text_path, whole

FACTOR = 2.0
LONGEST = 32  # tokens
DOUBT = 1.7
GLOBAL_TOKENS = 1 << 16
_LEAD = 4  # tokens of the prompt that go before an output into the global structure, so that its beginning is found
_LARGEST_CORPUS = 64 << 20  # bytes

Found = TypeVar("Found")


class Outputs:
    """Texts of finished requests, at most `bound` tokens of them; the oldest go first.

    An automaton cannot forget. So once it is half full an heir reads along, and when it is full the heir, which knows
    the newer texts alone, takes its place: from then on between about half the bound and all of it are known.

    Safe to use from several threads, each call as a whole.
    """

    def __init__(self, make: Callable[[], Automaton], bound: int) -> None:
        self._make, self._bound = make, bound
        self._current, self._heir = make(), make()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Tokens known."""
        return self._current.size

    def add(self, text: Sequence[int]) -> None:
        """Take in a text; of one longer than the bound its end."""
        text = text[max(0, len(text) - self._bound) :]
        with self._lock:
            while self._current.size + len(text) > self._bound:
                self._current, self._heir = self._heir, self._make()
            if self._current.size >= self._bound // 2:
                self._heir.add(text)
            self._current.add(text)

    def follow(self, place: Place | None, text: Sequence[int], new: int) -> Place:
        """Where a text stands among these.

        Args:
            place: where it stood `new` tokens ago, or None.
            text: all of it, the new tokens last.
            new: how many they are.
        """
        with self._lock:
            if place is None or place.automaton is not self._current:
                place, new = Place(self._current), self._current.longest
            for token in text[max(0, len(text) - new) :]:
                place.state, place.width = place.automaton.follow(place.state, place.width, token)
            return place

    def look(self, place: Place, search: Callable[[Automaton, int, int], Found]) -> Found:
        """Search from a place while nothing changes."""
        with self._lock:
            return search(place.automaton, place.automaton.settled(place.state, place.width), place.width)


@dataclass(slots=True)
class Place:
    """Where a text stands in the global structure: the longest of its ends that occurs there."""

    automaton: Automaton
    state: int = 0
    width: int = 0


@dataclass(slots=True)
class _State:
    tokens: list[int]  # committed, the pending one last
    prompt_length: int
    own: Automaton
    place: Place | None = None


class Suffix(Drafter):
    """Drafts the commonest continuation of the last tokens.

    The texts of finished requests are kept on the drafter and shared; everything else is a request's own.

    Args:
        factor: tokens drafted at most per token matched.
        longest: tokens of the text's end that are looked up.
        doubt: see the module; 0 gives the scores of suffix decoding.
        global_tokens: tokens of finished outputs that are kept; 0 keeps none.
    """

    makes_trees = from_text = for_encoders = True
    learns = True

    def __init__(
        self,
        factor: float = FACTOR,
        longest: int = LONGEST,
        doubt: float = DOUBT,
        global_tokens: int = GLOBAL_TOKENS,
    ) -> None:
        self._factor = factor
        self._make = partial(Automaton, longest, doubt)
        self._bound, self._corpus = global_tokens, list[list[int]]()
        self.learns = global_tokens > 0
        self.forget()
        self.spec = f"suffix:factor={factor:g},longest={longest},doubt={doubt:g},global={global_tokens}"

    @classmethod
    def from_spec(cls, argument: str, setting: Setting) -> Suffix:
        """`suffix` or `suffix:factor=F,longest=N,doubt=D,global=N,corpus=FILE`, each of them optional.

        Raises:
            BadOption: an option or a corpus that cannot be used.
        """
        given = cls.options(argument)
        names = {"global": "global_tokens"}
        drafter = cls(**{names.get(key, key): value for key, value in given.items() if key != "corpus"})
        if "corpus" in given:
            drafter._preload(read_corpus(Path(given["corpus"]), setting.tokenizer))
            drafter.spec += f",corpus={given['corpus']}"
        return drafter

    @staticmethod
    def options(argument: str) -> dict[str, Any]:
        """What stands behind the colon, before a corpus is read.

        Raises:
            BadOption: an option that cannot be used.
        """
        readers = {
            "factor": number(1),
            "longest": whole(1),
            "doubt": number(0),
            "global": whole(0),
            "corpus": text_path,
        }
        return read_options("suffix", argument, readers, path="corpus")

    def _preload(self, texts: list[list[int]]) -> None:
        size = sum(map(len, texts))
        if size > self._bound:
            raise BadOption(
                f"The corpus has {size} tokens, and {self._bound} tokens of other texts are kept: raise global "
                "(--global-tokens), or give a smaller corpus."
            )
        self._corpus = texts
        self.forget()

    def forget(self) -> None:
        """See `Drafter`: the corpus alone stays."""
        self._outputs = Outputs(self._make, self._bound) if self._bound else None
        for text in self._corpus:
            self._learn(text)

    def _learn(self, text: Sequence[int]) -> None:
        """Take a text into what all requests draft from."""
        if self._outputs is not None and text:
            self._outputs.add(text)

    def begin(self, prompt: Sequence[int], hidden: Mapping[int, Tensor]) -> _State:
        """See `Drafter`."""
        state = _State(list(prompt), len(prompt), self._make())
        state.own.add(prompt)
        if self._outputs is not None:
            state.place = self._outputs.follow(None, state.tokens, len(prompt))
        return state

    def seated(self, state: _State, seat: Seat) -> None:
        """See `Drafter`: what the target's encoder has read stands before the request's own text."""
        if seat.encoded is not None and seat.encoded.source.words:
            state.own = self._make()
            state.own.add([*seat.encoded.source.words, *state.tokens])

    def propose(
        self,
        states: Sequence[_State],
        budgets: Sequence[Budget],
        samplings: Sequence[Sampling],
        noises: Sequence[Noise],
    ) -> list[Draft]:
        """See `Drafter`; of equal scores the request's own text has precedence."""
        return [self._draft(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, state: _State, tokens: Sequence[int], scores: Scores, path: Sequence[int]) -> None:
        """See `Drafter`."""
        for token in tokens:
            state.own.append(token)
        state.tokens.extend(tokens)
        if self._outputs is not None:
            state.place = self._outputs.follow(state.place, state.tokens, len(tokens))

    def end(self, state: _State) -> None:
        """See `Drafter`: what was written goes into the global structure."""
        if len(state.tokens) > state.prompt_length:
            self._learn(state.tokens[max(0, state.prompt_length - _LEAD) :])

    def _draft(self, state: _State, budget: Budget) -> Draft:
        pending = state.tokens[-1]
        best = Draft(Tree.chain([pending]), score=0.0)
        if budget.depth < 1:
            return best
        best = self._search(state.own, *state.own.context, pending, budget, best)
        if self._outputs is not None and state.place is not None:
            best = self._outputs.look(
                state.place, lambda automaton, node, width: self._search(automaton, node, width, pending, budget, best)
            )
        return best

    def _search(self, automaton: Automaton, state: int, width: int, pending: int, budget: Budget, best: Draft) -> Draft:
        """The best-scored continuation here of a match of any length, or `best` if none is better."""
        for match, length in automaton.matches(state, width):
            limit = min(int(self._factor * length), budget.nodes)
            if automaton.highest(length, min(limit, budget.depth)) <= (best.score or 0.0):
                break  # and shorter matches promise even less
            if budget.nodes > budget.depth:
                tree, score = best_first(
                    pending, (match, length), partial(automaton.successors, most=limit), budget.depth, limit, LEAST
                )
            else:
                tokens, score = automaton.path(match, length, limit)
                tree = Tree.chain([pending, *tokens])
            if score > (best.score or 0.0):
                best = Draft(tree, score=score)
        return best


def read_corpus(path: Path, tokenizer: Any) -> list[list[int]]:
    """Ids of a file of text: the whole of it, or where it is named .jsonl the "text" of each line, apart.

    Raises:
        BadOption: missing, too large, not to be read, without text; or there is no tokenizer.
    """
    if tokenizer is None:
        raise BadOption("A corpus is text and needs a tokenizer: pass tokenizer= to load.")
    if not path.is_file():
        raise BadOption(f"There is no corpus {path}: check the path.")
    if path.stat().st_size > _LARGEST_CORPUS:
        raise BadOption(f"The corpus {path} is larger than {_LARGEST_CORPUS >> 20} MiB: give less of it.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadOption(f"The corpus {path} is not UTF-8 text: convert it first.") from error
    texts = [text] if path.suffix != ".jsonl" else list(_lines(text, path))
    ids = [list(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) for part in texts]
    if not any(ids):
        raise BadOption(f"The corpus {path} has no text: leave it out.")
    return ids


def _lines(text: str, path: Path) -> Iterator[str]:
    for place, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield str(json.loads(line)["text"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise BadOption(
                    f'{path}, line {place} has no "text": write one object with "text" per line.'
                ) from error
