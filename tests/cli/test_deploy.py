"""`outrider deploy`: exact commands for what was chosen, refusals before any, and a start that is one."""

from __future__ import annotations

import ast
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest


def deployed(outrider: Any, folder: Path, engine: str, text: str, *options: str) -> tuple[int, Any, str]:
    """Exit code, document and standard error for a file with this text."""
    file = folder / "outrider.toml"
    file.write_text(text)
    code, out, err = outrider("deploy", engine, "--config", str(file), "--json", *options)
    return code, json.loads(out) if out else None, err


def head(folder: Path, method: str, **shape: Any) -> Path:
    """What `deploy` looks at of a trained drafter's folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"format": 1, "method": method, "shape": shape}))
    return folder


MEASURED = """
[measured]
speculative_config = '{"method": "custom_class", "model": "outrider.vllm.SuffixProposer", "num_speculative_tokens": 6}'
additional_config = '{"outrider": {"policy": "goodput"}}'
"""
SUFFIX = 'target = "org/model"\ndrafter = "suffix"\npolicy = "goodput"\n'


def test_vllm_takes_what_tune_measured(outrider: Any, tmp_path: Path) -> None:
    """One machine: one command."""
    code, document, _ = deployed(outrider, tmp_path, "vllm", SUFFIX + MEASURED, "--port", "8001")
    assert code == 0
    config = {"method": "custom_class", "model": "outrider.vllm.SuffixProposer", "num_speculative_tokens": 6}
    assert document["speculative_config"] == config
    (step,) = document["steps"]
    told = ["--additional-config", '{"outrider": {"policy": "goodput"}}']
    where = ["vllm", "serve", "org/model", "--port", "8001"]
    assert step["argv"] == [*where, "--speculative-config", json.dumps(config), *told]
    assert shlex.split(step["line"]) == step["argv"]
    assert "pip install --no-deps outrider" in document["notes"][0]
    _, document, _ = deployed(outrider, tmp_path, "vllm", SUFFIX + MEASURED, "--k", "3")
    assert document["steps"][0]["argv"][3:] == [
        "--speculative-config",
        json.dumps({**config, "num_speculative_tokens": 3}),
    ]


def test_what_was_measured_of_another_drafter_is_left(outrider: Any, tmp_path: Path) -> None:
    """The file's drafter was changed since: its own options, and a length that is asked for."""
    text = SUFFIX.replace('"suffix"', '"suffix:factor=3"').replace("goodput", "fixed:4") + MEASURED
    _, document, _ = deployed(outrider, tmp_path, "vllm", text)
    assert document["speculative_config"]["num_speculative_tokens"] == 4
    told = ["--additional-config", '{"outrider": {"drafter": "suffix:factor=3"}}']
    assert document["steps"][0]["argv"][-2:] == told


def test_vllm_on_several_machines(outrider: Any, tmp_path: Path) -> None:
    """Ray joins them, and the first one serves."""
    text = 'target = "org/model"\ndrafter = "lookup:4"\npolicy = "fixed:5"\ndtype = "bfloat16"\nbatch = 8\n'
    where = ["--tensor-parallel", "8", "--pipeline-parallel", "2", "--machines", "2"]
    code, document, _ = deployed(outrider, tmp_path, "vllm", text, *where)
    assert code == 0
    first, others, serve = document["steps"]
    assert (first["line"], first["where"]) == ("ray start --head --port 6379", "the first machine")
    assert (others["line"], others["where"]) == ("ray start --address=HEAD_ADDRESS:6379", "every other machine")
    config = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 1, "num_speculative_tokens": 5}
    line = "vllm serve org/model --dtype bfloat16 --max-num-seqs 8 --tensor-parallel-size 8 --pipeline-parallel-size 2"
    more = ["--speculative-config", json.dumps(config), "--distributed-executor-backend", "ray"]
    assert serve["argv"] == [*line.split(), *more]
    code, _, err = deployed(outrider, tmp_path, "vllm", text, "--tensor-parallel", "3", "--machines", "2")
    assert code == 2 and "do not fall evenly on 2 machines" in err


@pytest.mark.parametrize(
    ("method", "layout", "more"),
    [
        ("eagle3", "speculators", ["--k", "3"]),
        ("dflash", "speculators", ["--k", "3"]),
        ("eagle", "eagle", []),
        ("medusa", "medusa", []),
    ],
)
def test_a_trained_drafter_is_exported_first(
    outrider: Any, tmp_path: Path, method: str, layout: str, more: list[str]
) -> None:
    """Beside its folder; what is there already is used."""
    folder = head(tmp_path / "head", method)
    text = f'target = "org/model"\ndrafter = "{method}:{folder}"\npolicy = "fixed:3"\n'
    out = tmp_path / "head-vllm"
    _, document, _ = deployed(outrider, tmp_path, "vllm", text)
    export, serve = document["steps"]
    line = ["outrider", "export", f"{method}:{folder}", "--format", layout, "--out", str(out), *more]
    assert export["argv"] == line
    assert document["speculative_config"] == {"method": method, "model": str(out), "num_speculative_tokens": 3}
    out.mkdir()
    _, document, _ = deployed(outrider, tmp_path, "vllm", text)
    assert [step["argv"] for step in document["steps"]] == [serve["argv"]]


def test_mtp_layers(outrider: Any, tmp_path: Path) -> None:
    """Those that were trained are exported first, a checkpoint's are where they are."""
    folder = head(tmp_path / "head", "mtp")
    (folder / "config.json").write_text(json.dumps({"format": 1, "method": "mtp", "target": {}}))
    text = f'target = "org/model"\ndrafter = "mtp:{folder}"\npolicy = "fixed:2"\n'
    code, _, err = deployed(outrider, tmp_path, "vllm", text)
    assert code == 2 and "the target's own configuration" in err
    _, document, _ = deployed(outrider, tmp_path, "vllm", text.replace(str(folder), "org/layers"))
    assert document["speculative_config"]["model"] == "org/layers"
    _, document, _ = deployed(outrider, tmp_path, "sglang", text)
    export, serve = document["steps"]
    out = tmp_path / "head-sglang"
    assert export["argv"] == ["outrider", "export", f"mtp:{folder}", "--format", "mtp", "--out", str(out)]
    assert f"--speculative-draft-model-path {out}" in serve["line"]
    _, document, _ = deployed(outrider, tmp_path, "sglang", text.replace(str(folder), "org/layers"))
    (serve,) = document["steps"]
    assert "--speculative-draft-model-path org/layers" in serve["line"]
    _, document, _ = deployed(outrider, tmp_path, "sglang", text.replace(f":{folder}", ""))
    (serve,) = document["steps"]
    assert "draft-model-path" not in serve["line"]
    code, _, err = deployed(outrider, tmp_path, "llamacpp", text.replace("org/model", "m.gguf"))
    assert code == 2 and "write mtp alone" in err


def test_sglang(outrider: Any, tmp_path: Path) -> None:
    """Chains have one token more than steps, trees the nodes that were chosen; a command for each machine."""
    folder = head(tmp_path / "head", "eagle3", fc_norm=False)
    text = f'target = "org/model"\ndrafter = "eagle3:{folder}"\npolicy = "fixed:4,16"\n'
    code, document, _ = deployed(outrider, tmp_path, "sglang", text, "--k", "3", "--tensor-parallel", "2")
    assert code == 0
    export, serve = document["steps"]
    assert export["argv"][3:5] == ["--format", "eagle3"]
    assert serve["line"] == (
        "python -m sglang.launch_server --model-path org/model --tp-size 2 --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {tmp_path / 'head-sglang'} --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    _, document, _ = deployed(outrider, tmp_path, "sglang", text, "--machines", "2", "--tensor-parallel", "16")
    assert [step["where"] for step in document["steps"]] == ["every machine", "machine 1", "machine 2"]
    tree = "--speculative-num-steps 4 --speculative-eagle-topk 8 --speculative-num-draft-tokens 17"
    assert tree in document["steps"][1]["line"]
    assert document["steps"][2]["line"].endswith("--nnodes 2 --node-rank 1 --dist-init-addr HEAD_ADDRESS:5000")


def test_llamacpp(outrider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GGUF files as they are; other models are converted first."""
    monkeypatch.chdir(tmp_path)
    text = 'target = "org/model.gguf"\ndrafter = "model:org/small"\npolicy = "fixed:4"\n'
    code, document, _ = deployed(outrider, tmp_path, "llamacpp", text, "--port", "8080")
    assert code == 0
    convert, serve = document["steps"]
    assert convert["line"] == "python convert_hf_to_gguf.py org/small --outfile small.gguf"
    assert serve["line"] == (
        "llama-server -m org/model.gguf --spec-type draft-simple -md small.gguf --spec-draft-n-max 4 --port 8080"
    )
    _, document, _ = deployed(outrider, tmp_path, "llamacpp", 'target = "m.gguf"\ndrafter = "lookup"\n', "--k", "9")
    assert document["steps"][0]["line"] == "llama-server -m m.gguf --spec-type ngram-simple --spec-draft-n-max 9"


def test_plain_decoding(outrider: Any, tmp_path: Path) -> None:
    """What tune writes where nothing pays."""
    text = 'target = "org/model.gguf"\ndrafter = "none"\n'
    for engine in ("vllm", "sglang", "llamacpp"):
        _, document, _ = deployed(outrider, tmp_path, engine, text)
        assert "spec" not in document["steps"][0]["line"]


REFUSED = [
    ("trt", SUFFIX, [], "There is no engine 'trt'"),
    ("vllm", 'drafter = "suffix"\n', ["--k", "3"], "names no target"),
    ("vllm", SUFFIX, [], "policy 'goodput' finds the draft length"),
    ("vllm", 'target = "org/m"\ndrafter = "recycle"\n', ["--k", "3"], "no method like 'recycle'"),
    ("vllm", 'target = "org/m"\ndrafter = "eagle3"\n', ["--k", "3"], "write eagle3:FOLDER"),
    ("sglang", 'target = "org/m"\ndrafter = "medusa:x"\n', ["--k", "3"], "no method like 'medusa'"),
    ("llamacpp", 'target = "m.gguf"\ndrafter = "eagle:x"\n', ["--k", "3"], "no method like 'eagle'"),
    ("llamacpp", SUFFIX, ["--tensor-parallel", "2"], "--split-mode"),
    ("vllm", SUFFIX + MEASURED, ["--machines", "2", "--tensor-parallel", "2", "--run"], "starts one machine's server"),
]


@pytest.mark.parametrize(("engine", "text", "options", "says"), REFUSED)
def test_refused(outrider: Any, tmp_path: Path, engine: str, text: str, options: list[str], says: str) -> None:
    """In one sentence with the remedy."""
    code, document, err = deployed(outrider, tmp_path, engine, text, *options)
    assert (code, document) == (2, None) and says in err and err.count("\n") == 1


def test_norms_that_sglang_does_not_compute(outrider: Any, tmp_path: Path) -> None:
    """It would serve such a head without a word, and have nothing accepted."""
    folder = head(tmp_path / "head", "eagle3", fc_norm=True)
    text = f'target = "org/model"\ndrafter = "eagle3:{folder}"\npolicy = "fixed:4"\n'
    code, _, err = deployed(outrider, tmp_path, "sglang", text)
    assert code == 2 and "fc_norm" in err


def test_run(outrider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as it was shown, with its exit code; nothing runs where it is not installed."""
    program = tmp_path / "bin" / "vllm"
    monkeypatch.setenv("PATH", str(program.parent))
    code, _, err = deployed(outrider, tmp_path, "vllm", SUFFIX + MEASURED, "--run")
    assert code == 2 and "There is no 'vllm' here" in err
    program.parent.mkdir()
    writes = f"open({str(tmp_path / 'seen')!r}, 'w').write(repr(sys.argv[1:]))"
    program.write_text(f"#!{sys.executable}\nimport sys\n{writes}\nsys.exit(3)\n")
    program.chmod(0o755)
    code, document, _ = deployed(outrider, tmp_path, "vllm", SUFFIX + MEASURED, "--run")
    assert code == 3
    assert ast.literal_eval((tmp_path / "seen").read_text()) == document["steps"][0]["argv"][1:]


@pytest.mark.vllm
def test_vllm_knows_the_keys() -> None:
    """Every key and method that we write is one of vLLM's, by its source (VLLM_SITE: the folder of its packages)."""
    site = os.environ.get("VLLM_SITE")
    if site is None:
        pytest.fail("Set VLLM_SITE to the site-packages folder of the vLLM environment.")
    source = (Path(site) / "vllm" / "config" / "speculative.py").read_text()
    (kind,) = (node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "SpeculativeConfig")
    keys = {item.target.id for item in kind.body if isinstance(item, ast.AnnAssign)}  # type: ignore[attr-defined]
    assert keys >= {
        "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "prompt_lookup_max",
        "prompt_lookup_min", "use_heterogeneous_vocab", "rejection_sample_method",
    }  # fmt: skip
    for method in ("ngram", "custom_class", "draft_model", "eagle", "eagle3", "medusa", "dflash", "mtp"):
        assert f'"{method}"' in source
    options = (Path(site) / "vllm" / "engine" / "arg_utils.py").read_text()
    for option in ("--tensor-parallel-size", "--pipeline-parallel-size", "--distributed-executor-backend",
                   "--speculative-config", "--additional-config", "--max-num-seqs", "--trust-remote-code",
                   "--dtype"):  # fmt: skip
        assert f'"{option}"' in options
