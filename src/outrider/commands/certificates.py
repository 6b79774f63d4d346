"""A proof as people read it: the checks, what diverged, and the certificate or why there is none."""

from __future__ import annotations

from collections.abc import Iterable
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

_SHOWN = 20  # divergences in the table; --json has all


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
    if found:
        console.print(_divergences(found, tokenizer))
    if proof.bias is not None:
        console.print(_bias(proof.bias))
    for note in proof.notes:
        console.print(note, style="dim")
    console.print(_verdict(proof, configuration, plan))


def _table(checks: Iterable[Check]) -> Table:
    grid = Table(title="Checks", title_justify="left")
    for name in ("check", "compared", "same", "ties", "faults", "drafted", "accepted", "control"):
        grid.add_column(name, justify="left" if name in ("check", "control") else "right")
    for check in checks:
        drafted, accepted = ("", "") if check.stats is None else (str(check.stats.drafted), str(check.stats.accepted))
        control = "none" if check.control is None else "caught" if check.control.caught else "not caught"
        same = "" if check.identical is None else str(check.identical)
        grid.add_row(
            check.name,
            str(check.compared),
            same,
            str(check.ties),
            str(check.faults),
            drafted,
            accepted,
            control,
        )
    return grid


def _control(check: Check) -> str:
    if check.control is None:
        return ""
    told = "was caught" if check.control.caught else "WAS NOT CAUGHT"
    return f" Control: {check.control.how} {told}."


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


def _divergences(found: list[tuple[str, Found]], tokenizer: Any) -> Table:
    title = "Divergences" if len(found) <= _SHOWN else f"Divergences (the first {_SHOWN} of {len(found)})"
    grid = Table(title=title, title_justify="left")
    for name in ("check", "prompt", "where", "token", "expected", "got", "top-2 gap", "gap", "rounding", "verdict"):
        grid.add_column(name, overflow="fold")
    for name, item in found[:_SHOWN]:
        told = item.divergence
        seed = "" if item.seed is None else f", seed {item.seed}"
        grid.add_row(
            name,
            str(item.prompt),
            f"{item.company}{seed}, {item.policy}",
            str(told.place),
            _token(told.expected, told.expected_logit, tokenizer),
            _token(told.got, told.got_logit, tokenizer),
            f"{told.top2_gap:.3g}",
            f"{told.gap:.3g}",
            f"{told.rounding:.3g}",
            told.verdict,
        )
    return grid


def _token(token: int | None, logit: float | None, tokenizer: Any) -> str:
    if token is None or logit is None:
        return "ended"
    return escape(f"{token} {tokenizer.decode([token])!r} at {logit:.5g}")


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
    reasons = "".join(f"\n- {reason}" for reason in proof.reasons)
    title, style, text = {
        "lossless": (
            "Certificate: lossless",
            "green",
            f"Speculation with {what} changed nothing in {tried}. Every check was shown to be able to fail.",
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
