"""Which CPUs are taken to multiply in bfloat16."""

from __future__ import annotations

import pytest
import torch

from outrider import linear, loading


@pytest.mark.parametrize(
    ("machine", "multiplies", "fast"),
    [("x86_64", False, False), ("AMD64", False, False), ("x86_64", True, True), ("aarch64", False, True)],
)
def test_emulation_is_not_taken_for_multipliers(
    machine: str, multiplies: bool, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN supports bfloat16 on any x86 with AVX-512, and emulates it on those without multipliers for it."""
    monkeypatch.setattr(linear, "_onednn_has_bfloat16", lambda: True)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    assert linear.has_fast_bfloat16() is fast
    assert loading.native_dtype("cpu") == (torch.bfloat16 if fast else torch.float32)


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else multiplies in bfloat16 on a CPU."""
    monkeypatch.setattr(linear, "_onednn_has_bfloat16", lambda: False)
    assert not linear.has_fast_bfloat16()
