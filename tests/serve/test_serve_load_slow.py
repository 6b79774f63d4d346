"""Two minutes of 64 clients who come and go, and a fuzzer: no error, no leak, every complete answer exact.

OUTRIDER_LOAD_SECONDS shortens the first; the second needs schemathesis: on the path, beside this Python, or where
OUTRIDER_SCHEMATHESIS says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving_tiny import NAME, until

import outrider
from outrider import Sampling
from outrider.serve.server import serving
from outrider.serve.service import Limits

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("OUTRIDER_LOAD_SECONDS", "120"))
CLIENTS = 64
PATH = "/v1/completions"
EXTRAS: list[dict[str, Any]] = [
    {},
    {"drafter": "none"},
    {"drafter": "lookup:3"},
    {"policy": "fixed:7"},
    {"policy": "goodput"},
    {"trace": True},
]


def offers(llm: outrider.Outrider) -> list[tuple[dict[str, Any], str]]:
    """Requests of many kinds, each with the text that the library writes for it."""
    found = []
    chance = random.Random(1)
    for place in range(24):
        prompt = "".join(chance.choices("abcde fgh", k=chance.randrange(1, 60)))
        sampling = {"temperature": chance.choice([0.0, 0.7, 1.2]), "seed": place}
        extras = chance.choice(EXTRAS)
        tokens = chance.randrange(1, 120)
        right = llm.generate(prompt, sampling=Sampling(**sampling), max_new_tokens=tokens).text
        found.append(({"model": NAME, "prompt": prompt, "max_tokens": tokens, **sampling, "outrider": extras}, right))
    return found


class Crowd:
    """What happened to everybody."""

    def __init__(self) -> None:
        self.complete = self.left = self.turned_away = 0
        self.wrong: list[str] = []


async def client(
    http: httpx.AsyncClient, offered: list[tuple[dict[str, Any], str]], until_: float, crowd: Crowd
) -> None:
    """Ask, and leave at random: before anything has come, in the middle, or never."""
    chance = random.Random()
    while time.monotonic() < until_:
        body, right = chance.choice(offered)
        leaves = chance.random() < 0.4
        try:
            if chance.random() < 0.2:
                answer = await http.post(PATH, json=body, timeout=chance.uniform(0.01, 0.5) if leaves else 300)
                if answer.status_code == 429:
                    crowd.turned_away += 1
                    await asyncio.sleep(0.1)
                elif answer.status_code != 200 or answer.json()["choices"][0]["text"] != right:
                    crowd.wrong.append(answer.text[:300])
                else:
                    crowd.complete += 1
                continue
            await stream(http, body, right, chance.randrange(12) if leaves else None, crowd)
        except httpx.TimeoutException:
            crowd.left += 1


async def stream(http: httpx.AsyncClient, body: dict[str, Any], right: str, stay: int | None, crowd: Crowd) -> None:
    """One stream, read for so many events, or to its end."""
    text, events, done = "", 0, False
    async with http.stream("POST", PATH, json=body | {"stream": True}, timeout=300) as answer:
        if answer.status_code == 429:
            crowd.turned_away += 1
            await asyncio.sleep(0.1)
            return
        async for line in answer.aiter_lines():
            if stay is not None and events >= stay:
                crowd.left += 1
                return
            done = done or line == "data: [DONE]"
            if line.startswith("data: {"):
                events += 1
                told = json.loads(line[6:])
                if "error" in told:
                    crowd.wrong.append(line[:300])
                    return
                text += told["choices"][0]["text"]
    if not done or text != right:
        crowd.wrong.append(f"{body['prompt']!r}: {text!r} instead of {right!r}")
    else:
        crowd.complete += 1


def test_a_crowd_that_comes_and_goes(tiny: outrider.Outrider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, queue and memory are as before when everybody has gone."""
    monkeypatch.setattr(tiny._prefixes, "_budget", 4 << 20)
    offered, crowd = offers(tiny), Crowd()
    process = psutil.Process()

    async def everybody(url: str) -> list[int]:
        sizes = []
        limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=url, limits=limits) as http:
            end = time.monotonic() + SECONDS
            clients = [asyncio.create_task(client(http, offered, end, crowd)) for _ in range(CLIENTS)]
            while time.monotonic() < end:
                await asyncio.sleep(SECONDS / 12)
                sizes.append(process.memory_info().rss)
            await asyncio.gather(*clients)
        return sizes

    limits = Limits(max_batch=12, max_queue=40, memory=32 << 20)
    with serving([tiny, tiny.using(drafter="lookup:3")], NAME, limits=limits) as server:
        sizes = asyncio.run(everybody(server.url))
        worker = server.service.wait().worker
        until(lambda: worker.idle and worker.cache_bytes == 0)
        metrics = httpx.get(f"{server.url}/metrics").text
        assert worker._engine.active == []
    print(vars(crowd) | {"wrong": len(crowd.wrong)}, [size >> 20 for size in sizes])
    assert crowd.wrong == []
    assert crowd.complete > SECONDS and crowd.left > SECONDS / 4 and crowd.turned_away
    assert "outrider_request_failure_total 0.0" in metrics
    assert sizes[-1] - sizes[len(sizes) // 3] < 48 << 20, "memory does not grow with the number of requests"


def schemathesis() -> str:
    """Where the fuzzer is."""
    beside = str(Path(sys.executable).with_name("schemathesis"))
    found = os.environ.get("OUTRIDER_SCHEMATHESIS") or shutil.which("schemathesis") or shutil.which(beside)
    if not found:
        pytest.fail("pip install schemathesis (in an environment of its own), and set OUTRIDER_SCHEMATHESIS to it.")
    return found


def test_a_fuzzer_finds_no_server_error(tiny: outrider.Outrider, tmp_path: Path) -> None:
    """schemathesis on the OpenAPI schema: whatever is sent, no 5xx, and answers as the schema says."""
    with serving(tiny, NAME, limits=Limits(max_tokens=8)) as server:
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        command = [schemathesis(), "run", f"{server.url}/openapi.json", "--checks", checks, "--max-examples", "60"]
        ran = subprocess.run([*command, "--seed", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
        print(ran.stdout[-4000:])
        assert ran.returncode == 0, ran.stdout[-6000:]
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert server.service.wait().worker.idle
