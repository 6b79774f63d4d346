"""A model for commands whose text does not matter: loading the real one takes seconds, a hundred times over."""

from __future__ import annotations

import alphabets
import pytest
import tiny


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Llama of two layers and a tokenizer of 400 words with a chat template."""
    return str(tiny.save(tmp_path_factory.mktemp("small"), alphabets.byte_level()))
