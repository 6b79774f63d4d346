"""`outrider costs`: the document, the plot, and what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

QUICK = ("--widths", "1,4", "--contexts", "16", "--repeats", "2")


def test_the_document_and_the_plot(outrider, tmp_path: Path) -> None:
    plot = tmp_path / "costs.png"
    code, out, _ = outrider("costs", *QUICK, "--batch", "1,2", "--json", "--plot", str(plot))
    document = json.loads(out)
    assert code == 0
    assert [(p["batch"], p["context"], p["width"]) for p in document["passes"]] == [
        (1, 16, 1), (1, 16, 4), (2, 16, 1), (2, 16, 4),
    ]  # fmt: skip
    for cost in document["passes"]:
        assert len(cost["samples"]) == 2
        assert min(cost["samples"]) <= cost["seconds"] <= max(cost["samples"])
    assert [knee["width"] in {1, 4} for knee in document["knees"]] == [True, True]
    assert document["pass_bytes"] > 100 << 20
    assert document["drafted"] == 5 and 0 < document["draft_seconds_per_token"] < 0.1
    assert 0 < document["bandwidth_share"] < 10
    assert document["configuration"]["build"] == "lean"
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_table_is_for_people(outrider) -> None:
    code, out, _ = outrider("costs", *QUICK, "--quantize", "int8", "--drafter", "none")
    assert code == 0
    assert "tokens per row" in out and "Free" in out and "GB/s" in out
    assert "The drafter proposed nothing." in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--widths", "1,x"), "--widths"),
        (("--batch", "0"), "--batch"),
        (("--contexts", "100000"), "the target holds"),
        (("--plot", "costs.txt"), ".png"),
        (("--plot", "/nowhere/costs.png"), "no folder"),
        (("--quantize", "int3"), "int8"),
        (("--quantize", "int8", "--no-fast"), "fast"),
        (("--compile", "--fast"), "compile"),
    ],
)
def test_refusals(outrider, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = outrider("costs", *arguments)
    assert code == 2
    assert says in err and "Traceback" not in err
