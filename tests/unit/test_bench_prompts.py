"""Where a bench's prompts come from."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.errors import BadOption, BadPrompt
from outrider.measure.prompts import CATEGORIES, BenchPrompt, digest, read


def test_our_own() -> None:
    """Four to six of each kind, with texts of some hundred words where a text is worked on."""
    prompts = read("builtin")
    counts = Counter(prompt.category for prompt in prompts)
    assert tuple(counts) == CATEGORIES and set(counts.values()) <= {4, 5, 6}
    for prompt in prompts:
        (message,) = prompt.prompt
        words = len(message["content"].split())  # type: ignore[index, call-overload]
        assert 150 < words < 600 if prompt.category in {"rewriting", "summarising", "retrieval"} else words > 10


def test_limits() -> None:
    assert Counter(p.category for p in read("builtin", per_category=2)) == dict.fromkeys(CATEGORIES, 2)
    assert [p.id for p in read("builtin", limit=3)] == ["chat-1", "code-1", "rewriting-1"]
    assert len(read("builtin", limit=9, per_category=1)) == len(CATEGORIES)


def written(path: Path, *records: object) -> str:
    """A JSONL file of these."""
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_spec_bench(tmp_path: Path) -> None:
    """The first turn alone: the others need the answers to those before."""
    path = written(
        tmp_path / "any.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
        {"question_id": 82, "category": "qa", "turns": ["Why?"], "reference": []},
    )
    assert read(f"spec_bench:{path}") == [
        BenchPrompt("81", "writing", [{"role": "user", "content": "Write."}]),
        BenchPrompt("82", "qa", [{"role": "user", "content": "Why?"}]),
    ]


def test_files(tmp_path: Path) -> None:
    path = written(
        tmp_path / "mine.jsonl",
        {"prompt": "Once", "id": "a", "category": "story"},
        {"messages": [{"role": "user", "content": "Hi"}]},
    )
    hi = [{"role": "user", "content": "Hi"}]
    assert read(path) == [BenchPrompt("a", "story", "Once"), BenchPrompt("2", "mine", hi)]
    (tmp_path / "lines.txt").write_text("One\n\nTwo\n")
    assert read(str(tmp_path / "lines.txt")) == [BenchPrompt("1", "lines", "One"), BenchPrompt("2", "lines", "Two")]


class Rows(list[dict[str, object]]):
    """A data set in memory."""

    @property
    def column_names(self) -> list[str]:
        """As the library has them."""
        return list(self[0])


def test_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is known, the categories if there are any, and no row without a text."""
    asked: list[object] = []

    def load_dataset(name: str, split: str, download_config: object) -> Rows:
        asked.append((name, split, download_config))
        return Rows({"question": text, "category": kind} for text, kind in (("Why?", "a"), ("", "a"), ("How?", "b")))

    library = SimpleNamespace(load_dataset=load_dataset, DownloadConfig=lambda local_files_only: local_files_only)
    monkeypatch.setitem(sys.modules, "datasets", library)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert read("datasets:org/set") == [
        BenchPrompt("0", "a", [{"role": "user", "content": "Why?"}]),
        BenchPrompt("2", "b", [{"role": "user", "content": "How?"}]),
    ]
    assert [prompt.id for prompt in read("datasets:org/set:test", limit=1, offline=True)] == ["0"]
    assert asked == [("org/set", "train", None), ("org/set", "test", True)]
    library.load_dataset = lambda *args, **options: Rows([{"label": 1}])
    with pytest.raises(BadPrompt, match="no column of prompts"):
        read("datasets:org/set")


def test_a_message_stands_for_itself_without_a_chat_template() -> None:
    """Base models continue what a chat model would be asked; a longer conversation is left to be refused."""
    asked = BenchPrompt("a", "chat", [{"role": "user", "content": "Hi"}])
    base, chat = SimpleNamespace(chat_template=None), SimpleNamespace(chat_template="{{ messages }}")
    assert asked.fitted(base) == "Hi"
    assert asked.fitted(chat) == asked.prompt
    assert BenchPrompt("a", "ids", [7]).fitted(None) == [7]
    long = BenchPrompt("a", "chat", [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    assert long.fitted(base) == long.prompt


def test_a_digest_tells_other_prompts() -> None:
    first, second = read("builtin", limit=2), read("builtin", limit=3)
    assert digest(first) == digest(second[:2]) != digest(second)


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "the id 'x'"),
        ([{"prompt": "a"}, {"text": "b"}], "line 2"),
        ([{"prompt": "a", "category": 3}], "category"),
    ],
)
def test_bad_files(tmp_path: Path, records: list[object], says: str) -> None:
    with pytest.raises(BadPrompt, match=says):
        read(written(tmp_path / "bad.jsonl", *records))


@pytest.mark.parametrize("record", [{"question_id": 1}, {"turns": []}, {"turns": [3]}, []])
def test_bad_spec_bench(tmp_path: Path, record: object) -> None:
    with pytest.raises(BadPrompt, match='line 1 has no "turns"'):
        read(f"spec_bench:{written(tmp_path / 'bad.jsonl', record)}")


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadPrompt, match=r"no file nowhere\.jsonl"):
        read("nowhere.jsonl")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"outrider\[datasets\]"):
        read("datasets:org/set")
