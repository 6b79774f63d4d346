"""A server on a tiny random model with a real tokenizer, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import outrider
from outrider.quiet import quiet
from outrider.serve.server import Server, serving

CONTEXT = 512
NAME = "tiny"
Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Path:
    """A random model of two layers, with the demo model's tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("serve") / NAME
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(demo_tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data.mul_(3)
    with quiet():
        model.save_pretrained(folder)
        demo_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> outrider.Outrider:
    """Drafts with the target itself, four tokens at a time, so that blocks are accepted."""
    return outrider.load(str(tiny_folder), f"model:{tiny_folder}", policy="fixed:4", dtype="float32")


@pytest.fixture(scope="module")
def server(tiny: outrider.Outrider) -> Iterator[Server]:
    """Two drafters to choose from."""
    with serving([tiny, tiny.using(drafter="lookup:3")], NAME) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture
def ask(server: Server) -> Iterator[Ask]:
    """Plain HTTP: `ask(path, body)` posts, `ask(path)` gets."""
    with httpx.Client(base_url=server.url, timeout=120) as http:

        def send(path: str, body: Any = None, **options: Any) -> httpx.Response:
            return http.get(path, **options) if body is None else http.post(path, json=body, **options)

        yield send


class Gate:
    """Lets the target's passes through one by one, or all of them; open at first.

    Attributes:
        passes: how many have begun.
    """

    def __init__(self) -> None:
        self._turns, self._open, self._broken = threading.Semaphore(0), True, False
        self.passes = 0

    def close(self) -> None:
        """Passes wait from now on, and are counted from 0."""
        self._open, self.passes = False, 0

    def open(self) -> None:
        """All may pass from now on."""
        self._open = True

    def let(self, passes: int) -> None:
        """So many more may pass."""
        self._turns.release(passes)

    def fail(self) -> None:
        """The pass that waits breaks."""
        self._broken = True
        self.let(1)

    def wait(self) -> None:
        """The target's part."""
        self.passes += 1
        while not self._open and not self._turns.acquire(timeout=0.02):
            pass
        if self._broken:
            self._broken = False
            raise RuntimeError("the pass broke")


@contextmanager
def gated(llm: outrider.Outrider) -> Iterator[Gate]:
    """A gate before every pass of a target."""
    gate, target = Gate(), llm.target
    forward = target.forward

    def waiting(*parts: Any, **options: Any) -> Any:
        gate.wait()
        return forward(*parts, **options)

    target.forward = waiting  # type: ignore[method-assign]
    try:
        yield gate
    finally:
        gate.open()
        del target.forward


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if holds():
            return
        done.wait(0.01)
    raise AssertionError("it never came to hold")
