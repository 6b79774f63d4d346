"""Writes the tables of docs/choosing.md anew from the rules: python docs/matrix.py."""

from __future__ import annotations

from pathlib import Path

from outrider.advise.matrix import filled

if __name__ == "__main__":
    page = Path(__file__).with_name("choosing.md")
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
