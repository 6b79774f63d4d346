"""Makes the peers' virtual environments, one folder each, outside the repository.

usage: python bench/peers/install.py [vllm] [openvino] [llamacpp]        (all of them when none is named)

They go to OUTRIDER_PEERS (~/.cache/outrider/peers by default). An environment that exists is left alone; delete its
folder to make it again. Where pip does not find a CPU build of torch by itself, set PIP_EXTRA_INDEX_URL to an index
that has one: an installation that would bring CUDA is given up. Transformers needs no environment: it runs in the
project's own. vLLM advises tcmalloc (apt-get install libtcmalloc-minimal4); it is used where it is
found. Knows nothing of what the peers are used for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from environments import ENVIRONMENTS, Environment


class NotInstalled(Exception):
    """An environment could not be made; the message says why in one sentence."""


def pip(environment: Environment, *arguments: str) -> str:
    """Run the environment's own pip and return what it printed.

    Raises:
        NotInstalled: pip failed.
    """
    command = [str(environment.python), "-m", "pip", "--disable-pip-version-check", *arguments]
    settings = {**os.environ, **dict(environment.settings)}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotInstalled(f"pip {arguments[0]} failed: {complaints[-1] if complaints else 'it printed nothing'}")
    return done.stdout


def refuse_cuda(environment: Environment, choice: list[str], folder: Path) -> None:
    """Ask pip what it would install.

    Raises:
        NotInstalled: CUDA would come along.
    """
    plan = folder / "plan.json"
    pip(environment, "install", "--quiet", "--dry-run", "--report", str(plan), *choice)
    names = [package["metadata"]["name"].lower() for package in json.loads(plan.read_text())["install"]]
    cuda = [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    if cuda:
        raise NotInstalled(
            f"it would bring {len(cuda)} CUDA packages: set PIP_EXTRA_INDEX_URL to an index with a CPU build of torch"
        )


def install(environment: Environment) -> None:
    """Make one environment; what was begun is removed if that fails.

    Raises:
        NotInstalled: with the reason.
    """
    venv.create(environment.folder, with_pip=True)
    try:
        with tempfile.TemporaryDirectory() as work:
            constraints = Path(work) / "constraints.txt"
            constraints.write_text("\n".join(environment.constraints) + "\n")
            choice = ["--constraint", str(constraints), *environment.requirements]
            if environment.constraints:
                refuse_cuda(environment, choice, Path(work))
            pip(environment, "install", "--quiet", *choice)
        if environment.removed:
            pip(environment, "uninstall", "--quiet", "--yes", *environment.removed)
    except BaseException:
        shutil.rmtree(environment.folder)
        raise


def main() -> None:
    """Make the environments that were named; the exit status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(ENVIRONMENTS)}")
    names = parser.parse_args().names or list(ENVIRONMENTS)
    unknown = sorted(set(names) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"there is no peer {', '.join(unknown)}: choose from {', '.join(ENVIRONMENTS)}.")
    failed = 0
    for environment in (ENVIRONMENTS[name] for name in names):
        if environment.python.exists():
            print(f"{environment.name}: {environment.folder} exists")
            continue
        try:
            install(environment)
            print(f"{environment.name}: installed in {environment.folder}", flush=True)
        except NotInstalled as reason:
            failed = 1
            print(f"{environment.name}: not installed, {reason}.", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
