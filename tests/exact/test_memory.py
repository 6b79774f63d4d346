"""Loading never holds two copies of the weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import sys, torch
import transformers.models.llama.modeling_llama
from transformers import AutoTokenizer
import outrider
from outrider import native

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

native.available()
AutoTokenizer.from_pretrained(sys.argv[1])
before = kilobytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
llm = outrider.load(sys.argv[1], "none", dtype="float32")
assert llm.target.build == "lean"
llm.generate("Hello", max_new_tokens=4)
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_one_copy_of_the_weights(demo_folder: Path) -> None:
    weights = sum(file.stat().st_size for file in demo_folder.glob("*.safetensors"))
    command = [sys.executable, "-c", LOAD, str(demo_folder)]
    peak = 1024 * int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    assert 0.9 * weights < peak < 1.15 * weights
