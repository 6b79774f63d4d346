"""Recordings through the loop: each is heard chunk by chunk, every chunk a request of its own behind the one before.

A chunk is what the encoder reads at once (30 seconds for Whisper). Where it ends is only known when the one before has
been written, for with time stamps the next begins at the last of them (Radford et al., 2212.04356, section 3.8).
Several recordings are under way together. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import speech
from .audio import Samples, read_audio
from .encoder_decoder import EncoderDecoderTarget
from .engine import Engine
from .errors import BadOption, BadPrompt
from .outputs import Piece, Segment, Transcript
from .row import Request, Row
from .sampling import Sampling
from .sources import demanded
from .types import Round, Source
from .verify import Verifier

Sound = str | Path | bytes | Samples | Tensor
"""A file, a file's content, or samples at the rate of the model's feature extractor."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a recording.

    Attributes:
        language, task: see `speech.opening`.
        timestamps: whether time stamps are written. None writes them where the recording is longer than a chunk, which
            cannot do without.
        context: ids of a text that every chunk stands behind, such as names that will occur.
        sampling, seed, prediction: see `Request`; chunk n has the seed `seed + n`.
        max_new_tokens: of each chunk; None writes as many as there is room for.
    """

    sampling: Sampling
    seed: int
    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None
    context: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    max_new_tokens: int | None = None


class Ear:
    """A target that reads audio, with what turns sound into its features.

    Args:
        target: the model.
        extractor: Transformers' feature extractor.
        tokenizer: for text; None gives ids only.

    Raises:
        BadOption: the target reads no audio, or the extractor is missing.
    """

    def __init__(self, target: object, extractor: Any, tokenizer: Any) -> None:
        if not isinstance(target, EncoderDecoderTarget) or not target.bins:
            raise BadOption("This target reads no audio: choose a Whisper model, or leave audio out.")
        if extractor is None:
            raise BadOption(
                "Audio needs the model's feature extractor: pass its processor as tokenizer=, or name a folder with a "
                "preprocessor_config.json."
            )
        self.target, self._extractor, self.tokenizer = target, extractor, tokenizer
        self.rate = int(extractor.sampling_rate)

    def speaking(self, tokenizer: Any) -> Ear:
        """The same with a tokenizer of the caller's own, for another thread."""
        return Ear(self.target, self._extractor, tokenizer)

    def samples(self, sound: Sound) -> Samples:
        """A recording as samples: a file is read, samples are taken as they are.

        Raises:
            BadOption, BadPrompt: see `audio.read_audio`.
        """
        if isinstance(sound, str | Path | bytes):
            return read_audio(sound, self.rate)
        return np.asarray(sound, dtype=np.float32)

    def features(self, samples: Samples) -> Tensor:
        """[bins, frames] of a recording: a whole chunk where it is no longer than that, all of it otherwise.

        Raises:
            BadPrompt: there is nothing in it, or it is no single row of numbers.
        """
        if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all():
            raise BadPrompt(f"A recording is one row of samples, {self.rate} a second, and not an empty one.")
        chunk = self.target.source_context * int(self._extractor.hop_length)
        options: dict[str, Any] = {"truncation": False, "padding": "longest"} if len(samples) > chunk else {}
        made = self._extractor(samples, sampling_rate=self.rate, return_tensors="pt", **options)
        features: Tensor = made["input_features"][0]
        return features

    def text(self, ids: Sequence[int]) -> str:
        """Their text, without special tokens and time stamps."""
        return "" if self.tokenizer is None else str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def context(self, text: str) -> tuple[int, ...]:
        """The ids of a text that stands before a recording.

        Raises:
            BadOption: there is no tokenizer for it.
        """
        if self.tokenizer is None:
            raise BadOption("A prompt needs the model's tokenizer: pass its processor as tokenizer= to load.")
        return tuple(int(token) for token in self.tokenizer.get_prompt_ids(text))

    def prediction(self, text: str) -> tuple[int, ...]:
        """The ids of a transcript that the caller expects; Whisper begins its texts with a space."""
        return tuple(self.tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"])


class Recording:
    """One recording under way: which chunk comes next, and what has been written.

    Args:
        ear: who listens.
        samples: the sound.
        wish: what is wanted.

    Attributes:
        ids, segments: of the chunks that are done.
        number: of chunks that are done.
        duration: seconds.

    Raises:
        BadOption, BadPrompt: before any work, with the remedy.
    """

    def __init__(self, ear: Ear, samples: Samples, wish: Wish) -> None:
        self._ear, self._target, self.wish = ear, ear.target, wish
        self._features = ear.features(samples)
        self.duration = len(samples) / ear.rate
        config, chunk = self._target.generation, self._target.source_context
        longer = self._features.shape[-1] > chunk
        if longer and wish.timestamps is False:
            raise BadOption(
                f"The recording is longer than {chunk / speech.SECOND:g} seconds, which takes time stamps to be cut "
                "into chunks: leave timestamps out, or give a shorter recording."
            )
        self._stamped = longer if wish.timestamps is None else wish.timestamps
        self._opening = speech.opening(config, self._target.config, wish.language, wish.task, self._stamped)
        without = getattr(config, "no_timestamps_token_id", None)
        self._first_stamp = self._target.vocabulary + 1 if without is None else int(without) + 1
        self.segments: list[Segment] = []
        self._seek = self.number = 0
        self.ids: list[int] = []
        self._told = 0  # characters
        self.next_request().check(self._target.context, self._target.vocabulary)

    @property
    def done(self) -> bool:
        """Whether everything has been heard."""
        return self._seek >= self._features.shape[-1]

    @property
    def heard(self) -> float:
        """Seconds that are done."""
        return min(self._seek / speech.SECOND, self.duration)

    @property
    def text(self) -> str:
        """Of the chunks that are done."""
        return self._ear.text(self.ids)

    @property
    def language(self) -> str | None:
        """The language's token, once it is known."""
        known = getattr(self._target.generation, "lang_to_id", None) or {}
        names = {int(token): name for name, token in known.items()}
        return next((names[token] for token in self._opening.start if token in names), None)

    @property
    def _frames(self) -> int:
        """Of the next chunk."""
        return min(self._target.source_context, self._features.shape[-1] - self._seek)

    def next_request(self) -> Request:
        """The next chunk."""
        start = (*self.wish.context, *self._opening.start)
        chunk = self._features[:, self._seek : self._seek + self._frames]
        chunk = torch.nn.functional.pad(chunk, (0, self._target.source_context - self._frames))
        room = self._target.context - len(start)
        asked = self.wish.max_new_tokens
        length = max(1, room if asked is None else asked + self._opening.written)
        sampling = self._sampling(len(start), length)
        spoken = sum(token < self._first_stamp for token in self.ids)
        expected = self.wish.prediction[spoken:] or self.wish.prediction
        seed = self.wish.seed + self.number
        return Request(start, sampling, seed, length, (), expected, source=Source(features=chunk))

    def _sampling(self, start: int, length: int) -> Sampling:
        """What the caller wants, under Whisper's rules for this chunk."""
        from transformers import WhisperTimeStampLogitsProcessor

        sampling, behind = self.wish.sampling, start + self._opening.written
        if self._stamped:
            stamps = WhisperTimeStampLogitsProcessor(self._target.generation, begin_index=behind)
            sampling = replace(sampling, processors=(stamps, *sampling.processors))
        sampling = demanded(self._target, sampling, behind, length - self._opening.written, ())
        if not self._opening.languages:
            return sampling
        return replace(sampling, processors=(speech.Opener(self._opening, start, sampling.processors),))

    def take(self, output: Sequence[int]) -> None:
        """A chunk is done: what was written in it, and where the next begins."""
        ids = list(output[self._opening.written :])
        if self._opening.languages:  # the next chunks stand behind what was detected
            self._opening = speech.Opening((*self._opening.start, *output[: self._opening.written]))
        if ids and ids[-1] in self._target.eos:
            ids.pop()
        found, frames = speech.spans(ids, self._first_stamp, self._frames)
        offset = self._seek / speech.SECOND
        for span in found:
            times = (offset + span.start, offset + span.end)
            self.segments.append(Segment(*times, self._ear.text(span.ids), span.ids))
            self.ids += span.ids
        self._seek += frames if frames > 0 else self._frames
        self.number += 1

    def told(self, output: Sequence[int], piece: str) -> str:
        """What of the text is certain and has not been told yet.

        Args:
            output: what has been written of the chunk under way; nothing once `take` has had it.
            piece: what the chunk's own row tells. That is certain where no time stamps are wanted; a model that writes
                pairs of them all the same makes parts of a chunk be heard again, as in Transformers.
        """
        if not self._stamped:
            return piece
        now = output[self._opening.written :]
        text = self._ear.text([*self.ids, *now[: speech.settled(now, self._first_stamp)]])
        piece = text[self._told :]
        self._told += len(piece)
        return piece


class Listening(Iterator[Round]):
    """Recordings under way together. Iterating hears them, round by round: `Round.request` says whose a round is.
    Leaving early ends them.

    Attributes:
        outputs: what has been written so far, one per recording; complete once the iterator is exhausted.
    """

    def __init__(self, engine: Engine, recordings: Sequence[Recording], exactness: str, verifier: Verifier) -> None:
        self._recordings, self._exactness, self._verifier = recordings, exactness, verifier
        self._rounds: list[list[Round]] = [[] for _ in recordings]
        self._requests = [recording.next_request() for recording in recordings]
        self._rows: list[Row | None] = [None] * len(recordings)
        self._whose = {id(request): index for index, request in enumerate(self._requests)}
        self._events: Iterator[tuple[Row, Round]] = engine.run(tuple(self._requests), self._follow)

    def __next__(self) -> Round:
        row, round_ = next(self._events)
        index = self._whose[id(row.request)]
        self._rows[index] = row
        told = replace(round_, request=index)
        self._rounds[index].append(told)
        if row.finish is not None:
            self._recordings[index].take(row.output)
        return told

    def heard(self, index: int) -> float:
        """Seconds of a recording that are done."""
        return self._recordings[index].heard

    def told(self, index: int) -> str:
        """What of a recording's text is certain and has not been told yet."""
        row = self._rows[index]
        if row is None:
            return ""
        return self._recordings[index].told(() if row.finish is not None else row.output, row.told())

    def stop(self) -> None:
        """End it here."""
        self._events = iter(())

    def _follow(self, row: Row) -> Request | None:
        """The chunk that comes behind one that is done."""
        index = self._whose[id(row.request)]
        if self._recordings[index].done:
            return None
        following = self._recordings[index].next_request()
        self._whose[id(following)] = index
        self._requests.append(following)  # an id is only good as long as its object lives
        return following

    @property
    def outputs(self) -> list[Transcript]:
        """See the class."""
        return [self._output(index) for index in range(len(self._recordings))]

    def _output(self, index: int) -> Transcript:
        recording, row = self._recordings[index], self._rows[index]
        return Transcript(
            text=recording.text,
            token_ids=list(recording.ids),
            finish_reason=row.finish if row is not None and recording.done else None,
            rounds=self._rounds[index],
            seed=recording.wish.seed,
            prompt_ids=self._requests[index].prompt,
            exactness=self._exactness,
            reused=0,
            verifier=self._verifier.spec,
            lossless=self._verifier.lossless,
            segments=tuple(recording.segments),
            language=recording.language,
            duration=recording.duration,
        )


class ListeningStream(Iterator[Piece]):
    """One recording under way. Iterating hears it; leaving early, or `stop`, ends it.

    Attributes:
        output: what has been written so far; complete once the iterator is exhausted.
    """

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    def __next__(self) -> Piece:
        round_ = next(self._listening)
        return Piece(self._listening.told(0), round_)

    @property
    def heard(self) -> float:
        """Seconds of the recording that are done."""
        return self._listening.heard(0)

    def stop(self) -> None:
        """End it here."""
        self._listening.stop()

    @property
    def output(self) -> Transcript:
        """See the class."""
        return self._listening.outputs[0]
