"""What rounding leaves open, measured on models whose passes really differ: true ties are ties, faults are faults."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import VOCABULARY, make, prompts

from outrider.measure.divergence import judge
from outrider.measure.reference import transformers_again, transformers_logits
from outrider.measure.rounding import LogitsOf, _passes_of, left_open, moved, other_logits, plain_logits
from outrider.row import Request
from outrider.sampling import Sampling
from outrider.target import TransformersTarget

TEXTS = prompts(9, 23, 41, 64, 70, 97, 110, 131, seed=11)
DTYPES = (torch.float32, torch.bfloat16)
UNSEEN = ((2, 16), (3, 24), (5, 40), (7, 64))  # widths and tails that nobody measures rounding by


@functools.cache
def wide(dtype: torch.dtype) -> Any:
    """A model wide enough that kernels sum in different orders."""
    model = make("llama", hidden_size=192, intermediate_size=320, num_hidden_layers=4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model.to(dtype)


def tie(model: Any, text: Sequence[int]) -> tuple[int, int]:
    """Two ids with the same logit behind this text, the highest one, by weights that have nothing else in common: so
    every way of computing them makes errors of its own."""
    with torch.no_grad():
        state = model.model(torch.tensor([list(text)])).last_hidden_state[0, -1].double()
        first = int(model(torch.tensor([list(text)])).logits[0, -1].argmax())
        second = (first + 1) % VOCABULARY
        weight = model.lm_head.weight
        aside = torch.randn(len(state), dtype=torch.float64) * weight.std().double()
        aside -= (aside @ state) / (state @ state) * state
        weight[second] = (weight[first].double() + aside).to(weight.dtype)
    return first, second


@pytest.mark.parametrize("dtype", DTYPES)
def test_true_ties_are_ties(dtype: torch.dtype) -> None:
    """Whatever else computes the two logits, in passes of other widths or in Transformers' own, picks one of them, and
    either is a tie; by two roundings alone some would be called faults."""
    flips = steps = 0
    for text in TEXTS:
        model = wide(dtype)
        before = model.lm_head.weight.clone()
        first, second = tie(model, text)
        target = TransformersTarget(model)
        own, again = plain_logits(target), other_logits(target)
        logits = own(text).float()
        by = moved(logits, [way(text) for way in again])
        best = float(logits.max())
        unseen = [_passes_of(target, width, tail) for width, tail in UNSEEN]
        for way in (*unseen, transformers_logits(model), *transformers_again(model)):
            shift = way(text).float() - logits
            assert abs(float(shift[first] - shift[second])) <= left_open(best, by, dtype), (len(text), best, by)
            steps += int(shift.any())
            order = [int((logits + part)[[first, second]].argmax()) for part in (0, shift)]
            if order[0] != order[1]:
                flips += 1
                written = [(first, second)[place] for place in order]
                told = judge(request(text), written[:1], written[1:], own, dtype, again=again)
                assert told is not None and told.verdict == "tie", told
        with torch.no_grad():
            model.lm_head.weight.copy_(before)
    assert flips or not steps, "where passes differ, ties flip"


@pytest.mark.parametrize("dtype", DTYPES)
def test_planted_faults_are_faults(dtype: torch.dtype) -> None:
    """A token that was not seen, and one that stands at another place, which is what goes wrong in real loops."""
    target = TransformersTarget(wide(dtype))
    own, again = plain_logits(target), other_logits(target)
    faults = 0
    for text in TEXTS[:5]:
        right = int(own(text).argmax())
        for wrong in (int(own(text[:-1]).argmax()), int(own([*text[:-2], text[-1], text[-2]]).argmax())):
            if wrong != right:
                told = judge(request(text), [right], [wrong], own, dtype, again=again)
                assert told is not None and told.verdict == "fault", told
                faults += 1
    assert faults > 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_whose_wide_passes_are_wrong_has_no_excuse(dtype: torch.dtype) -> None:
    """Its difference is not rounding, so nothing is explained by it."""
    target = TransformersTarget(wide(dtype))
    text = TEXTS[2]

    def broken(ids: Sequence[int]) -> torch.Tensor:
        return plain_logits(target)(ids[1:])

    logits = plain_logits(target)(text)
    best = float(logits.max())
    ways: tuple[LogitsOf, ...] = (*other_logits(target), broken)
    by = moved(logits, [way(text) for way in ways])
    assert left_open(best, by, dtype) == left_open(best, 0.0, dtype)


def request(text: Sequence[int]) -> Request:
    """Greedy, behind this text."""
    return Request(tuple(text), Sampling(), 0, 1)
