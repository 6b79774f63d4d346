"""THE loop: draft, verify, commit. Chains, trees, batches and plain decoding are all this. Never names a drafter.

Rows join and leave between rounds, and each may have a drafter and a policy of its own. Each round of each row is one
`Round`; whatever anyone wants to know of a run is computed from those. Invariant: a row's cache holds all of its tokens
but the last, which is pending.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch

from .drafters import Drafter
from .errors import BadOption, BadPrompt, NoProgress
from .kv import KVCache, Seat, arranged, gather
from .layers import verification
from .noise import SeededNoise
from .policy import Policy
from .prefix import Prefixes
from .row import Request, Row
from .sampling import logprobs
from .target import Encoder, Target, prefill
from .text import Tokenizer
from .tree import is_chain
from .types import Budget, Draft, Round, Scores, Verdict
from .verify import Verifier

PREFILL_CHUNK = 512  # tokens
SPARE = 128  # slots behind a row's last token: drafts of other rows may be wider than what is left of its own

_logger = logging.getLogger(__name__)
_Drafted = tuple[Draft, float]  # a draft and the seconds that its drafter took, for all of its rows together


class Engine:
    """A batch of requests on one target.

    Args:
        target, drafter, verifier: the parts of the loop.
        make_policy: a fresh policy for each request.
        tokenizer: for text and stop strings; None serves ids only.
        prefill_chunk: prompt tokens per pass, which bounds the memory that a long prompt takes.
        prefixes: where computed prompts are kept for the next request; None keeps none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        make_policy: Callable[[], Policy],
        tokenizer: Tokenizer | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.target, self.drafter, self.verifier = target, drafter, verifier
        self._make_policy, self._tokenizer, self._chunk = make_policy, tokenizer, prefill_chunk
        self._prefixes = prefixes
        self._batch: list[tuple[Row, Seat]] = []
        self._count = 0

    def add(self, request: Request, drafter: Drafter | None = None, policy: Policy | None = None) -> Row:
        """Take a request in: run its prompt through the target, all but the last token, which becomes pending.

        Args:
            request: what is wanted.
            drafter, policy: for this request alone, in the place of the engine's.

        Raises:
            BadPrompt, BadOption: it cannot be served; nothing has been done.
        """
        target, drafter = self.target, drafter or self.drafter
        request.check(target.context, target.vocabulary)
        if (request.source is not None) != isinstance(target, Encoder):
            raise BadPrompt("A source is what an encoder-decoder target reads, which needs one: see Request.source.")
        drafter.check_prediction(request.prediction)
        if request.stop and self._tokenizer is None:
            raise BadOption("Stop strings need a tokenizer: load the model with its tokenizer, or leave them out.")
        row = Row(request, self._count, policy or self._make_policy(), target.eos, target.context, self._tokenizer)
        self._count += 1
        capacity = min(len(request.prompt) + request.max_new_tokens, target.context)
        prefixes = self._prefixes_for(request)
        known = prefixes.longest(request.prompt, capacity + SPARE, drafter.taps) if prefixes is not None else None
        seat = Seat(known.cache if known is not None else target.new_cache(1, capacity + SPARE))
        if request.source is not None and isinstance(target, Encoder):
            seat.cache.encoded[seat.row] = target.encode(request.source)
        row.reused = seat.length
        head = request.prompt[row.reused : -1]
        hidden = prefill(target, head, seat.cache, taps=drafter.taps, chunk=self._chunk)
        if known is not None and drafter.taps:
            hidden = {tap: torch.cat([old, hidden.get(tap, old[:0])]) for tap, old in known.states.items()}
        if drafter.taps and prefixes is not None and prefixes.on:
            row.states = [hidden]
        row.drafter, row.state = drafter, drafter.begin(request.prompt, hidden)
        drafter.seated(row.state, seat)
        if request.prediction:
            drafter.expect(row.state, request.prediction)
        self._batch.append((row, seat))
        return row

    def remove(self, row: Row) -> None:
        """Let a row go before its end; the others do not notice."""
        self._release(lambda other: other is row)

    @property
    def active(self) -> list[Row]:
        """The rows under way, in the order of the next pass."""
        self._batch = [self._batch[which] for which in arranged([seat for _, seat in self._batch])]
        return [row for row, _ in self._batch]

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that are allocated for them."""
        return sum(cache.nbytes for cache in {id(seat.cache): seat.cache for _, seat in self._batch}.values())

    def step(self) -> list[tuple[Row, Round]]:
        """One round for every active row.

        A row on whose account a drafter, a processor, the rule or a policy raises ends alone: `Row.error` says why.
        What the target's pass raises concerns them all and comes out here; they stay as they were before.
        """
        began = perf_counter()
        drafts = self._drafts() if self._batch else []
        if not drafts:
            return []
        rows, cache = self.active, self._gathered()
        taps = tuple(sorted({tap for row in rows for tap in row.drafter.taps}))
        drafted = perf_counter()
        scores = verification(self.target, [draft for draft, _ in drafts], cache, taps)
        verified = perf_counter() - drafted
        rounds: list[Round | None] = [None] * len(rows)
        for place, row in enumerate(rows):
            with _blamed_on(row):
                rounds[place] = self._conclude(row, drafts[place], scores[place])
        cache.keep([round_.path[: len(round_.tokens)] if round_ else () for round_ in rounds])
        done = [(row, round_) for row, round_ in zip(rows, rounds, strict=True) if round_ is not None]
        nodes = sum(len(draft.tree) for draft, _ in drafts)
        results = []
        for place, (row, round_) in enumerate(done):
            about = replace(round_, verify_seconds=verified, rows=len(done), nodes=nodes, place=place, began=began)
            with _blamed_on(row):
                row.policy.observe(about)
            results.append((row, about))
        for place, row in enumerate(rows):
            prefixes = self._prefixes_for(row.request)
            if row.finish is not None and row.error is None and prefixes is not None:
                count = cache.lengths[place]
                prefixes.keep(row.tokens[:count], cache, place, row.known_states(count))
        self._release(lambda row: row.finish is not None or row.error is not None)
        return results

    def run(
        self, requests: Sequence[Request], follow: Callable[[Row], Request | None] = lambda row: None
    ) -> Iterator[tuple[Row, Round]]:
        """Serve these requests together to their end, round by round. Leaving early drops their rows.

        Args:
            requests: they join at once.
            follow: asked when a row has finished; what it gives joins the others.

        Raises:
            Exception: what went wrong with one of them, after the round of the others.
        """
        try:
            for request in requests:
                self.add(request)
            while rows := self.active:
                for row, round_ in self.step():
                    yield row, round_
                    if row.finish is not None and (following := follow(row)) is not None:
                        self.add(following)
                for row in rows:
                    if row.error is not None:
                        raise row.error
        finally:
            self._release(lambda row: True)

    def _release(self, leaves: Callable[[Row], bool]) -> None:
        """Rows go, and their drafters' states with them."""
        leaving = [row for row, _ in self._batch if leaves(row)]
        self._batch = [(row, seat) for row, seat in self._batch if not leaves(row)]
        for row in leaving:
            with _blamed_on(row):
                row.drafter.end(row.state)

    def _gathered(self) -> KVCache:
        """The cache in which all rows sit."""
        return gather([seat for _, seat in self._batch])

    def _prefixes_for(self, request: Request) -> Prefixes | None:
        """Where prefixes are kept; behind another source the same tokens have other keys."""
        return None if request.source is not None else self._prefixes

    def _drafts(self) -> list[_Drafted]:
        """A draft for each row; rows on whose account their drafter raises have left.

        Rows share a drafter's work, so all are asked for together. If that fails, each is asked for alone, in a cache
        of its own, to learn whose fault it was; a drafter may be asked again before anything is committed.
        """
        rows, cache = self.active, self._gathered()
        lengths = list(cache.lengths)
        try:
            return self._ask(rows)
        except Exception as error:
            if len(rows) > 1:
                _logger.warning("Drafting for %d rows failed (%s): now one by one.", len(rows), type(error).__name__)
        cache.lengths = lengths  # a drafter that runs the target's own layers may have been broken off in the middle
        found = []
        for row, seat in self._batch:
            gather([seat])
            with _blamed_on(row):
                # Keys of layers that were run ahead are lost when rows move.
                found += [(replace(draft, started=None), seconds) for draft, seconds in self._ask([row])]
        self._release(lambda row: row.error is not None)
        return found

    def _ask(self, rows: Sequence[Row]) -> list[_Drafted]:
        """Their drafters' drafts, and the seconds that each drafter took."""
        found: dict[int, _Drafted] = {}
        for drafter in dict.fromkeys(row.drafter for row in rows):
            begun = perf_counter()
            own = [row for row in rows if row.drafter is drafter]
            drafts = drafter.propose(
                [row.state for row in own],
                [self._budget(row) for row in own],
                [row.request.sampling for row in own],
                [SeededNoise.for_draft(row.request.seed, row.rounds, self.verifier.coupled) for row in own],
            )
            seconds = perf_counter() - begun
            found |= {row.index: (self._pruned(row, draft), seconds) for row, draft in zip(own, drafts, strict=True)}
        return [found[row.index] for row in rows]

    def _budget(self, row: Row) -> Budget:
        """The one place where a draft's length is decided: policy, budget, context, and the drafter's own room."""
        wanted = row.policy.budget()
        depth = max(0, min(wanted.depth, row.room, row.drafter.room(row.state)))
        cut = wanted.cut(depth)
        # Rules that serve nothing but chains get chains.
        return replace(cut, nodes=depth if self.verifier.chains_only else cut.nodes, law=self.verifier.needs_probs)

    def _pruned(self, row: Row, draft: Draft) -> Draft:
        """Without what the request's own processors will refuse. Dropping a token for what it is would bias rules that
        weigh it by the law it was drawn from."""
        harmless = self.verifier.coupled or (draft.drawn == "point" and not self.verifier.needs_probs)
        return row.request.sampling.fitting(row.tokens, draft) if harmless else draft

    def _conclude(self, row: Row, drafted: _Drafted, score: Scores) -> Round:
        """Judge a row's draft and commit what stands; what its pass was is told later."""
        draft, draft_seconds = drafted
        begun = perf_counter()
        verdict = self._verdict(row, draft, score)
        seconds = perf_counter() - begun
        start = len(row.tokens)
        tokens = row.extend([*draft.tree.tokens[list(verdict.path[1:])].tolist(), verdict.token])
        if not tokens:
            raise NoProgress(f"Round {row.rounds} of request {row.index} committed no token.")
        path = verdict.path[: len(tokens)]
        row.drafter.commit(row.state, tokens, score, path)
        if row.states is not None:
            row.states.append(score.hidden_at(path, row.drafter.taps))
        kept = verdict.path[: len(tokens) + 1]  # a drafted token that ended the output was kept, and is pending
        about = (row.index, row.rounds, start, draft.tree, kept, tokens, row.finish, draft_seconds, 0.0, seconds)
        wanted = row.request.logprobs
        thoughts = () if wanted is None else logprobs(score.at(path).logits, tokens, wanted)
        row.rounds += 1
        weighed = verdict.divergence[: len(tokens)]
        return Round(*about, divergence=weighed, logprobs=thoughts, read=draft.read, room=row.room + 1)

    def _verdict(self, row: Row, draft: Draft, score: Scores) -> Verdict:
        if self.verifier.chains_only and not is_chain(draft.tree.parents):
            raise BadOption(
                f"The verifier '{self.verifier.spec}' serves chains and the drafter made a tree: use the verifier "
                "'match' with this drafter."
            )
        law = row.request.sampling.law(score.logits, draft.tree, row.history)
        noise = SeededNoise.for_verifier(row.request.seed, row.rounds)
        return self.verifier(law, draft, noise, len(row.tokens))


@contextlib.contextmanager
def _blamed_on(row: Row) -> Iterator[None]:
    """Whatever goes wrong here is this row's own trouble, which ends it; the first trouble is the one that is told."""
    try:
        yield
    except Exception as error:
        row.error = row.error or error
