"""A proof as people read it: the checks, what diverged, and the certificate or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..measure.certificate import Bias, Check, Found, Proof
from ..measure.chi_square import Fit
from ..measure.proof import Plan
from ..stats import Stats

_SHOWN = 20  # divergences on the screen; --json has all


def show_proof(proof: Proof, configuration: dict[str, str], plan: Plan, tokenizer: Any) -> None:
    """Everything, on standard output."""
    console = Console(highlight=False)
    if proof.checks:
        console.print(_table(proof.checks))
    for check in proof.checks:
        console.print(f"[bold]{check.name}[/bold]: {escape(check.what)}.{_control(check)}")
        if check.fit is not None:
            console.print(_law(check.fit))
    found = [(str(check.name), found) for check in proof.checks for found in check.divergences]
    for line in _divergences(found, tokenizer):
        console.print(line)
    if proof.bias is not None:
        console.print(_bias(proof.bias))
    for note in proof.notes:
        console.print(note, style="dim")
    console.print(_verdict(proof, configuration, plan))


def _table(checks: Iterable[Check]) -> Table:
    grid = Table(title="Checks", title_justify="left")
    for name in ("check", "compared", "same", "ties", "faults", "drafted", "accepted"):
        grid.add_column(name, justify="left" if name == "check" else "right", no_wrap=True)
    for check in checks:
        drafted, accepted = ("", "") if check.stats is None else (str(check.stats.drafted), str(check.stats.accepted))
        same = "" if check.identical is None else str(check.identical)
        grid.add_row(check.name, str(check.compared), same, str(check.ties), str(check.faults), drafted, accepted)
    return grid


def _control(check: Check) -> str:
    if check.control is None:
        return ""
    told = "was caught" if check.control.caught else "WAS NOT CAUGHT"
    caveat = f" But {check.caveat}." if check.caveat else ""
    return f" Control: {check.control.how} {told}.{caveat}"


def _law(fit: Fit) -> str:
    """A chi-square test in words, its power first of all."""
    power = (
        "there is but one cell, so it could have found nothing"
        if fit.smallest_tv is None
        else f"it would have found any law that is off by a total variation of {fit.smallest_tv:.3f} or more with "
        f"{fit.power:.0%} probability"
    )
    foreign = f"; {fit.foreign} texts that the target cannot write" if fit.foreign else ""
    return (
        f"Chi-square {fit.statistic:.1f} over {fit.cells} cells from {fit.samples} texts: probability "
        f"{fit.probability:.3g} if the law is right (a fault below {fit.alpha:g}){foreign}. At this number of texts "
        f"{power}; more --seeds find less."
    )


def _divergences(found: list[tuple[str, Found]], tokenizer: Any) -> Iterator[Text]:
    """A line for each: both tokens with their logits, the gaps, the verdict."""
    for name, item in found[:_SHOWN]:
        told = item.divergence
        seed = "" if item.seed is None else f", seed {item.seed}"
        yield Text(
            f"Divergence ({name}, prompt {item.prompt}{seed}, {item.company}, {item.policy}), token {told.place}: "
            f"expected {_token(told.expected, told.expected_logit, tokenizer)}, "
            f"got {_token(told.got, told.got_logit, tokenizer)}; top-2 gap {told.top2_gap:.3g}, "
            f"gap {told.gap:.3g}, rounding {told.rounding:.3g}: {told.verdict}",
            style="yellow" if told.verdict == "tie" else "red",
        )
    if len(found) > _SHOWN:
        yield Text(f"Divergences: {len(found) - _SHOWN} more, see --json.")


def _token(token: int | None, logit: float | None, tokenizer: Any) -> str:
    if token is None or logit is None:
        return "the end"
    return f"{token} {tokenizer.decode([token])!r} at {logit:.6g}"


def _bias(bias: Bias) -> Table:
    """What the rule changes, and what that buys."""
    grid = Table(title="Bias of the relaxed rule", title_justify="left", show_header=False)
    kl = bias.stats.mean_kl
    rows = (
        ("mean total variation from the target's law", _figure(bias.stats.mean_tv)),
        ("mean Kullback-Leibler divergence from it, nats", _figure(kl)),
        ("sampled tokens at temperature", f"{bias.stats.tokens} at {bias.temperature:g}"),
        ("acceptance length, and under match", f"{_length(bias.stats)}, {_length(bias.lossless)}"),
        ("greedy outputs that are plain decoding's", f"{bias.identical} of {bias.compared}"),
    )
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _length(stats: Stats) -> str:
    return "nothing drafted" if stats.acceptance_length is None else f"{stats.acceptance_length:.2f}"


def _verdict(proof: Proof, configuration: dict[str, str], plan: Plan) -> Panel:
    what = (
        f"{configuration['target']} ({configuration['dtype']}, {configuration['build']}, "
        f"quantize {configuration['quantize']}) with the drafter {configuration['drafter']}, the verifier "
        f"{configuration['verifier']} and {configuration['policy']}"
    )
    tried = f"{len(plan.prompts)} prompts, {plan.max_new_tokens} tokens each"
    ties = sum(check.ties for check in proof.checks)
    but = f" but for {ties} near ties, which the rounding of {configuration['dtype']} explains" if ties else ""
    reasons = "".join(f"\n- {reason}" for reason in proof.reasons)
    title, style, text = {
        "lossless": (
            "Certificate: lossless",
            "green",
            f"Speculation with {what} changed nothing in {tried}{but}. Every check was shown to be able to fail.",
        ),
        "fault": ("FAULT: no certificate", "red", f"Speculation with {what} differs beyond rounding:{reasons}"),
        "unproven": (
            "No certificate",
            "yellow",
            f"Nothing was found against speculation with {what}, but that proves nothing:{reasons}",
        ),
        "relaxed": (
            "Relaxed: measured, not certified",
            "yellow",
            f"{what}: the output does not have the target's law; the bias above was measured over {tried}.",
        ),
    }[proof.verdict]
    return Panel(Text(text), title=title, border_style=style)
