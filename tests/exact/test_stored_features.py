"""States kept on the disk: training from them is training from the target itself, and nothing wrong is ever read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import learning
import pytest
import torch
from loaded import read_model, read_tokenizer
from test_training import asked

import outrider as library
from outrider import checkpoints
from outrider.commands.data import Wanted
from outrider.commands.data import run as make_data
from outrider.commands.settings import Settings
from outrider.commands.train import run
from outrider.errors import BadOption
from outrider.target import TransformersTarget
from outrider.train import corpus, stored
from outrider.train.answers import read_answers


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, Path]:
    """A saved tiny target, and a folder of its answers."""
    return learning.answered(tmp_path, 12, 16)


def curve(tiny: tuple[Path, Path], out: Path, method: str = "eagle3", **given: Any) -> list[float]:
    """The losses of a short run."""
    document = run(*asked(method, tiny, out, **given), dry=False, show=False)
    return [point["loss"] for point in document["curve"]]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that the target is run on for states."""
    seen: list[int] = []
    computed = corpus.OnlineFeatures.__call__

    def spy(self: corpus.OnlineFeatures, ids: Any) -> Any:
        seen.append(len(ids))
        return computed(self, ids)

    monkeypatch.setattr(corpus.OnlineFeatures, "__call__", spy)
    return seen


@pytest.mark.parametrize("method", ["eagle3", "eagle", "medusa"])
def test_the_losses_are_those_of_online_training(method: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Equal where nothing is rounded, and within the rounding of bfloat16 otherwise; with texts that are cut, too, as
    long as the target's states do not depend on what else is in a pass."""
    given = {"longest": 20, "lr": 1e-3, "fast": True}
    online = curve(tiny, tmp_path / "online", method, **given)
    exact = curve(tiny, tmp_path / "exact", method, features="stored", features_dtype="float32", **given)
    assert exact == online
    ours = (tmp_path / "exact" / "model.safetensors").read_bytes()
    assert ours == (tmp_path / "online" / "model.safetensors").read_bytes()
    rounded = curve(tiny, tmp_path / "rounded", method, features="stored", **given)
    assert rounded != online and rounded == pytest.approx(online, rel=0.02)


def test_the_target_runs_once(tiny: tuple[Path, Path], tmp_path: Path, passes: list[int]) -> None:
    """However many epochs and methods follow; layers that are not there are added, and then all are."""
    few = {"epochs": 3, "steps": None, "features": "stored", "evaluate_every": 100}
    held = 3  # texts that are measured on, of which nothing is stored
    curve(tiny, tmp_path / "one", "medusa", **few)
    assert len(passes) == 9 + held
    curve(tiny, tmp_path / "two", "eagle", **few)
    assert len(passes) == 9 + 2 * held
    curve(tiny, tmp_path / "three", "eagle3", **few)  # other layers: all anew
    assert len(passes) == 2 * 9 + 3 * held
    curve(tiny, tmp_path / "four", "medusa", **few)
    assert len(passes) == 2 * 9 + 4 * held
    about = json.loads((tiny[1] / "features" / "features.json").read_text())
    assert about["layers"] == [0, 1, 2, 3] and about["dtype"] == "bfloat16"
    learning.answers(read_model(tiny[0]), tiny[1], 16, 16)  # four more, of which one is held out, and the old again
    passes.clear()
    document = run(*asked("medusa", tiny, tmp_path / "five", **few), dry=False, show=False)
    assert document["steps"] and len(passes) == 3 + 4


def test_states_of_another_precision_serve(tiny: tuple[Path, Path], tmp_path: Path, passes: list[int]) -> None:
    """A capture that took hours is not thrown away because the target is loaded in another type today."""
    losses = curve(tiny, tmp_path / "one", "medusa", features="stored")
    about = tiny[1] / "features" / "features.json"
    about.write_text(about.read_text().replace('"computed": "float32"', '"computed": "bfloat16"'))
    passes.clear()
    assert curve(tiny, tmp_path / "two", "medusa", features="stored") == losses and len(passes) == 3  # those held out
    curve(tiny, tmp_path / "three", "eagle3", features="stored")  # layers that are not there are computed, with all
    assert len(passes) == 3 + 9 + 3 and json.loads(about.read_text())["computed"] == "float32"


def test_broken_shards_are_made_again(tiny: tuple[Path, Path], tmp_path: Path, passes: list[int]) -> None:
    """One flipped bit, one file cut off, one that is no such file; and a store of another target goes whole."""
    losses = curve(tiny, tmp_path / "one", features="stored")
    (shard,) = (tiny[1] / "features").glob("*.safetensors")
    whole = shard.read_bytes()
    for spoiled in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-5], b"nothing of the kind"):
        shard.write_bytes(spoiled)
        passes.clear()
        assert curve(tiny, tmp_path / f"again{len(spoiled)}{spoiled[-1]}", features="stored") == losses
        assert len(passes) == 9 + 3
    about = tiny[1] / "features" / "features.json"
    about.write_text(about.read_text().replace('"target": "', '"target": "0'))
    passes.clear()
    assert curve(tiny, tmp_path / "other", features="stored") == losses
    assert len(passes) == 9 + 3


def test_a_broken_capture_goes_on(
    tiny: tuple[Path, Path], tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed before Ctrl-C is there, and only the rest is computed."""
    whole = stored.Shards.add

    def breaks(self: stored.Shards, ids: Any, states: Any) -> None:
        if len(passes) == 5:
            raise KeyboardInterrupt
        whole(self, ids, states)

    with monkeypatch.context() as patch:
        patch.setattr(stored.Shards, "add", breaks)
        with pytest.raises(KeyboardInterrupt):
            curve(tiny, tmp_path / "out", features="stored")
    passes.clear()
    assert curve(tiny, tmp_path / "out", features="stored") == curve(tiny, tmp_path / "new", features="stored")
    assert len(passes) == 5 + 3 + 3


def test_shards_are_bounded(tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written once it is large enough, and all of them are read."""
    monkeypatch.setattr(stored, "_SHARD", 5000)
    target = TransformersTarget(read_model(tiny[0]))
    about = stored.About(target="x", computed="float32", dtype="float32", layers=(1, 3))
    store = stored.Store(tiny[1], about)
    answers = read_answers(tiny[1], 100)
    stored.fill(store, answers, corpus.OnlineFeatures(target, about.layers))
    sizes = [shard.stat().st_size for shard in store.shards()]
    assert len(sizes) > 4 and max(sizes) < 3 * 5000 + 1000
    store.scan()
    assert not store.missing(answers)
    states = stored.StoredFeatures(target, (3, 1), 3, [store], answers, 12)
    for answer in answers:
        tapped, last = states(answer.ids[:12])
        expected = corpus.OnlineFeatures(target, (3, 1))(answer.ids[:12])
        assert torch.allclose(tapped, expected[0], atol=1e-5) and torch.allclose(last, expected[1], atol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"features": "cached"}, "There are no features 'cached': choose online or stored"),
        ({"features": "stored", "features_dtype": "int8"}, "choose bfloat16 or float32"),
        ({"features": "stored", "features_limit": 1e-6}, "raise --features-limit, or take --features online"),
        ({"features_dtype": "float32"}, "say --features stored"),
        ({"features_limit": 3.0}, "say --features stored"),
    ],
)
def test_features_that_cannot_be(tiny: tuple[Path, Path], tmp_path: Path, given: dict[str, Any], says: str) -> None:
    """Refused before any step; of states that would take too much, nothing is written."""
    with pytest.raises(BadOption, match=says):
        curve(tiny, tmp_path / "out", **given)
    assert not list(tiny[1].glob("features/*.safetensors"))


@pytest.mark.parametrize("drafter", ["none", "suffix"])
@pytest.mark.parametrize("fast", [True, False])
def test_states_from_the_pass_that_answers(
    tmp_path: Path, passes: list[int], drafter: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`outrider data --features` keeps what training would compute: to the bit on exact targets. Nothing runs again."""
    monkeypatch.setitem(stored._TYPES, "bfloat16", torch.float32)  # so that nothing is rounded
    learning.tiny(tmp_path / "target", eos_token_id=5)
    prompts = tmp_path / "prompts.jsonl"
    texts = [" ".join(f"w{(n * 7 + place) % 90 + 5}" for place in range(1 + n % 5)) for n in range(24)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    settings = Settings(str(tmp_path / "target"), drafter, "match", None, "float32", "cpu", True, False, fast, None)
    wish = Wanted(tmp_path / "data", (str(prompts),), 0, 1, None, 16, "0.5,1.0", 0.25, 0, 5, "auto")
    make_data(settings, wish, show=False)
    assert not passes
    llm = library.load(str(tmp_path / "target"), "none", dtype="float32", offline=True, fast=fast)
    answers = [answer for answer in read_answers(tmp_path / "data", 100) if not answer.held_out]
    kept = stored.Store(tmp_path / "data", stored.Store(tmp_path / "data", _about(tmp_path / "data")).about)
    kept.scan()
    assert answers and not kept.missing(answers)
    layers = kept.about.layers
    for answer in answers:
        found = kept.get(stored.key_of(answer.ids), layers)
        expected, _ = corpus.OnlineFeatures(llm.target, layers)(answer.ids)
        assert found is not None and not found[-1].any()
        ours, theirs = found[:-1], expected[:-1]
        assert torch.equal(ours, theirs) if llm.exactness == "bits" else torch.allclose(ours, theirs, atol=1e-4)
    passes.clear()
    template = checkpoints.template_hash(read_tokenizer(tmp_path / "target"))
    assert template is None
    given = {"features": "stored", "steps": 2, "evaluate_every": 2}
    tiny = (tmp_path / "target", tmp_path / "data")
    stays = run(*asked("eagle3", tiny, tmp_path / "out", fast=fast, **given), dry=False, show=False)
    assert stays["steps"] == 2 and len(passes) <= 8, "held-out texts alone are run"


def _about(data: Path) -> stored.About:
    return stored.About.model_validate_json((data / "features" / "features.json").read_text())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--features", "all"], "write auto, or layers"),
        (["--features", "2,99"], "has the layers 0 to 3"),
        (["--features", "auto", "--features-limit", "0.0000001"], "raise --features-limit"),
        (["--features-limit", "3"], "say --features auto"),
        (["--features", "auto", "--quantize", "int8"], "leave out --quantize or --features"),
    ],
)
def test_data_whose_states_cannot_be_kept(
    tiny: tuple[Path, Path], outrider: Any, tmp_path: Path, options: list[str], says: str
) -> None:
    """One sentence, exit code 2."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "w5 w6"}\n')
    where = [
        "--target",
        str(tmp_path / "target"),
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "--max-new-tokens",
        "9",
    ]
    code, _, error = outrider("data", *where, "--out", str(tmp_path / "new"), "--dtype", "float32", *options)
    assert code == 2 and says in error and error.count("\n") == 1, error


def test_unused_families_are_served(tmp_path: Path) -> None:
    """GPT-2's states, too."""
    families.gpt2().save_pretrained(tmp_path / "target")
    learning.tokenizer(learning.WORDS).save_pretrained(tmp_path / "target")
    learning.answers(read_model(tmp_path / "target"), tmp_path / "data", 8, 12)
    tiny = (tmp_path / "target", tmp_path / "data")
    given = {"features": "stored", "features_dtype": "float32"}
    assert curve(tiny, tmp_path / "one", **given) == curve(tiny, tmp_path / "two")
