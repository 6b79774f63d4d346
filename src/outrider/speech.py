"""Whisper's rules for putting a recording to its decoder and for reading times off what it writes.

Source: Radford et al., 2212.04356, in the form that Transformers' `generate` gives them, so that ids agree with it.
Knows generation configurations and token ids; no models, no sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import BadOption
from .sampling import Processor

TASKS = ("transcribe", "translate")
SECOND = 100  # frames of features
STAMP = 0.02  # seconds between two time stamps


@dataclass(frozen=True, slots=True)
class Opening:
    """How an answer begins.

    Attributes:
        start: ids that stand before it.
        languages: ids of which the likeliest comes first, where the language is not given; else none.
        then: ids that follow on it, whatever the model thinks.
    """

    start: tuple[int, ...]
    languages: tuple[int, ...] = ()
    then: tuple[int, ...] = ()

    @property
    def written(self) -> int:
        """How many tokens of the answer belong to its opening."""
        return 1 + len(self.then) if self.languages else 0


class Opener:
    """A processor that writes an opening: the likeliest language, then what has to follow. Others come after it.

    Args:
        opening: see `Opening`; it has languages.
        place: how many tokens stand before the answer.
        others: processors for what comes behind the opening.
    """

    def __init__(self, opening: Opening, place: int, others: Sequence[Processor] = ()) -> None:
        self._languages, self._then, self._place = list(opening.languages), opening.then, place
        self._others = others

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """See `sampling.Processor`."""
        place = ids.shape[1] - self._place
        if place > len(self._then):
            for other in self._others:
                scores = other(ids, scores)
            return scores
        token = self._then[place - 1] if place else self._languages[int(scores[0, self._languages].argmax())]
        only = torch.full_like(scores, -math.inf)
        only[:, token] = 0
        return only


def opening(config: Any, model_config: Any, language: str | None, task: str | None, timestamps: bool) -> Opening:
    """The tokens for a language, a task and time stamps, as Transformers' Whisper chooses them.

    Args:
        config: the generation configuration.
        model_config: the model's, for checkpoints whose forced ids stand there.
        language: a code ("en"), a name ("english") or a token ("<|en|>"); None detects it.
        task: "transcribe" or "translate"; None is the former.
        timestamps: whether they are written.

    Raises:
        BadOption: the model knows no such language or task, or only one language.
    """
    if task is not None and task not in TASKS:
        raise BadOption(f"There is no task {task!r}: choose one of {', '.join(TASKS)}.")
    if getattr(config, "is_multilingual", None) is False and (task is not None or language is not None):
        raise BadOption("This model knows one language and no tasks: leave language and task out.")
    task, language = task or getattr(config, "task", None), language or getattr(config, "language", None)
    ids: list[int | None] = [config.decoder_start_token_id]
    if task is None and language is None:
        ids += _forced(getattr(config, "forced_decoder_ids", None) or getattr(model_config, "forced_decoder_ids", None))
    languages, tasks = getattr(config, "lang_to_id", None), getattr(config, "task_to_id", None)
    if language is not None:
        known = _language(language, languages)
        ids[1:2] = [known]
    elif languages and (len(ids) == 1 or ids[1] is None):
        ids[1:2] = [None]
    if task is not None:
        if not tasks:
            raise BadOption("This model's generation configuration knows no tasks: leave task out.")
        ids.append(tasks[task])
    elif language is not None and tasks and not set(tasks.values()) & set(ids):
        ids.append(tasks["transcribe"])
    without = getattr(config, "no_timestamps_token_id", None)
    if timestamps and without is None:
        raise BadOption("This model's generation configuration has no time stamps: leave them out.")
    if without is not None and not timestamps and ids[-1] != without:
        ids.append(without)
    elif timestamps and ids[-1] == without:
        ids.pop()
    if languages and None in ids:
        rest = ids[ids.index(None) + 1 :]
        start = tuple(token for token in ids[: ids.index(None)] if token is not None)
        return Opening(start, tuple(languages.values()), tuple(token for token in rest if token is not None))
    return Opening(tuple(token for token in ids if token is not None))


def _forced(pairs: Sequence[Sequence[Any]] | None) -> list[int | None]:
    """Ids of the old way to say what comes first: pairs of a place, from 1, and an id."""
    found: list[int | None] = []
    for place, token in pairs or ():
        if place != len(found) + 1:
            break
        found.append(token)
    return found


def _language(name: str, known: Any) -> int:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    if not known:
        raise BadOption("This model's generation configuration knows no languages: leave language out.")
    name = name.lower()
    for token in (name, f"<|{TO_LANGUAGE_CODE.get(name, name)}|>"):
        if token in known:
            return int(known[token])
    codes = ", ".join(sorted(token.strip("<|>") for token in known))
    raise BadOption(f"The model knows no language {name!r}: choose one of {codes}.")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of what was written in one chunk: times in seconds from the chunk's beginning."""

    start: float
    end: float
    ids: tuple[int, ...]


def spans(ids: Sequence[int], first_stamp: int, frames: int) -> tuple[list[Span], int]:
    """What was written in a chunk, cut at its time stamps, and how many frames of it are done.

    A pair of time stamps ends one stretch and begins the next. If the last is a pair, what follows is cut off in the
    middle, so it is heard again from there. A single stamp at the end says that there is nothing behind it.

    Args:
        ids: without the opening and the end of sequence.
        first_stamp: the id that means 0 seconds.
        frames: of the chunk.
    """
    stamped = [token >= first_stamp for token in ids]
    cuts = [place + 1 for place in range(len(ids) - 1) if stamped[place] and stamped[place + 1]]
    if not cuts:
        stamps = [token for token in ids if token >= first_stamp]
        end = stamps[-1] - first_stamp if stamps and stamps[-1] != first_stamp else int(frames / SECOND / STAMP)
        return [Span(0.0, end * STAMP, tuple(ids))], frames
    closed = stamped[-2:] == [False, True]
    if closed:
        cuts.append(len(ids))
    else:
        cuts[-1] += 1  # its own last stamp, and the one that would begin the next
    found, before = [], 0
    for cut in cuts:
        part = ids[before:cut]
        last = -1 if closed or cut != cuts[-1] else -2
        found.append(Span((part[0] - first_stamp) * STAMP, (part[last] - first_stamp) * STAMP, tuple(part)))
        before = cut
    if closed:
        return found, frames
    return found, max(0, ids[before - 2] - first_stamp) * round(STAMP * SECOND)


def settled(ids: Sequence[int], first_stamp: int) -> int:
    """How many of the tokens of a chunk under way will stay: those before its last pair of time stamps."""
    for place in range(len(ids) - 1, 0, -1):
        if ids[place] >= first_stamp and ids[place - 1] >= first_stamp:
            return place
    return 0
