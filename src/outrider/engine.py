"""THE loop: draft, verify, commit. Chains, trees, batches and plain decoding are all this. Never names a drafter.

Rows join and leave between rounds. Each round of each row is one `Round`; whatever anyone wants to know of a run is
computed from those. Invariant: a row's cache holds all of its tokens but the last, which is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from .drafters import Drafter
from .errors import BadOption, NoProgress
from .kv import Seat, gather
from .layers import verification
from .noise import SeededNoise
from .policy import Policy
from .prefix import Prefixes
from .row import Request, Row
from .target import Target, prefill
from .text import Tokenizer
from .tree import is_chain
from .types import Budget, Draft, Round, Scores, Verdict
from .verify import Verifier

PREFILL_CHUNK = 512  # tokens


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
        # A drafter with taps wants the states of the whole prompt, which nobody keeps.
        self._prefixes = None if drafter.taps else prefixes
        self._batch: list[tuple[Row, Seat]] = []
        self._count = 0

    def add(self, request: Request) -> Row:
        """Take a request in: run its prompt through the target, all but the last token, which becomes pending.

        Raises:
            BadPrompt, BadOption: it cannot be served; nothing has been done.
        """
        target = self.target
        request.check(target.context, target.vocabulary)
        self.drafter.check_prediction(request.prediction)
        if request.stop and self._tokenizer is None:
            raise BadOption("Stop strings need a tokenizer: load the model with its tokenizer, or leave them out.")
        row = Row(request, self._count, self._make_policy(), target.eos, target.context, self._tokenizer)
        self._count += 1
        capacity = min(len(request.prompt) + request.max_new_tokens, target.context)
        known = self._prefixes.longest(request.prompt, capacity) if self._prefixes is not None else None
        seat = Seat(known or target.new_cache(1, capacity))
        row.reused = seat.length
        head = request.prompt[row.reused : -1]
        hidden = prefill(target, head, seat.cache, taps=self.drafter.taps, chunk=self._chunk)
        row.state = self.drafter.begin(request.prompt, hidden)
        self.drafter.seated(row.state, seat)
        if request.prediction:
            self.drafter.expect(row.state, request.prediction)
        self._batch.append((row, seat))
        return row

    def remove(self, row: Row) -> None:
        """Let a row go before its end; the others do not notice."""
        self._release(lambda other: other is row)

    def _release(self, leaves: Callable[[Row], bool]) -> None:
        """Rows go, and their drafter's states with them."""
        leaving = [row for row, _ in self._batch if leaves(row)]
        self._batch = [(row, seat) for row, seat in self._batch if not leaves(row)]
        for row in leaving:
            self.drafter.end(row.state)

    @property
    def active(self) -> list[Row]:
        """The rows under way."""
        return [row for row, _ in self._batch]

    def step(self) -> list[tuple[Row, Round]]:
        """One round for every active row."""
        rows = self.active
        if not rows:
            return []
        started = perf_counter()
        cache = gather([seat for _, seat in self._batch])
        drafts = self.drafter.propose(
            [row.state for row in rows],
            [self._budget(row) for row in rows],
            [row.request.sampling for row in rows],
            [SeededNoise.for_draft(row.request.seed, row.rounds, self.verifier.coupled) for row in rows],
        )
        drafted = perf_counter()
        scores = verification(self.target, drafts, cache, self.drafter.taps)
        verified = perf_counter()
        nodes = sum(len(draft.tree) for draft in drafts)
        results, paths = [], []
        for place, (row, draft, score) in enumerate(zip(rows, drafts, scores, strict=True)):
            begun = perf_counter()
            verdict = self._verdict(row, draft, score)
            judged = perf_counter()
            start = len(row.tokens)
            tokens = row.extend([*draft.tree.tokens[list(verdict.path[1:])].tolist(), verdict.token])
            if not tokens:
                raise NoProgress(f"Round {row.rounds} of request {row.index} committed no token.")
            path = verdict.path[: len(tokens)]
            paths.append(path)
            self.drafter.commit(row.state, tokens, score, path)
            kept = verdict.path[: len(tokens) + 1]  # a drafted token that ended the output was kept, and is pending
            seconds = (drafted - started, verified - drafted, judged - begun)
            pass_ = (len(rows), nodes, place)
            away = verdict.divergence[: len(tokens)]
            about = (row.index, row.rounds, start, draft.tree, kept, tokens, row.finish)
            round_ = Round(*about, *seconds, *pass_, divergence=away)
            row.rounds += 1
            row.policy.observe(round_)
            results.append((row, round_))
        cache.keep(paths)
        for place, row in enumerate(rows):
            if row.finish is not None and self._prefixes is not None:
                self._prefixes.keep(row.tokens[: cache.lengths[place]], cache, place)
        self._release(lambda row: row.finish is not None)
        return results

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Row, Round]]:
        """Serve these requests together to their end, round by round. Leaving early drops their rows."""
        try:
            for request in requests:
                self.add(request)
            while self._batch:
                yield from self.step()
        finally:
            self._release(lambda row: True)

    def _budget(self, row: Row) -> Budget:
        """The one place where a draft's length is decided: policy, budget, context, and the drafter's own room."""
        wanted = row.policy.budget()
        depth = max(0, min(wanted.depth, row.room, self.drafter.room(row.state)))
        cut = wanted.cut(depth)
        # Rules that serve nothing but chains get chains.
        return replace(cut, nodes=depth if self.verifier.chains_only else cut.nodes, law=self.verifier.needs_probs)

    def _verdict(self, row: Row, draft: Draft, score: Scores) -> Verdict:
        if self.verifier.chains_only and not is_chain(draft.tree.parents):
            raise BadOption(
                f"The verifier '{self.verifier.spec}' serves chains and the drafter made a tree: use the verifier "
                "'match' with this drafter."
            )
        law = row.request.sampling.law(score.logits, draft.tree, row.history)
        noise = SeededNoise.for_verifier(row.request.seed, row.rounds)
        return self.verifier(law, draft, noise, len(row.tokens))
