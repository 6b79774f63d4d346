"""The models that drafters run: each is read once, for as long as any drafter holds it. Knows no drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from .loading import Loader
from .target import Target


class DraftModels:
    """Loads draft models as the target was loaded, and hands the same one out again while it is in use.

    Args:
        loader: the target's.
        device: where draft models go instead of the target's device, or None.
        quantize: "int8" to round their weights, whatever the target's are; None does to them what was done to it.

    Attributes:
        loader: see above.
        asked: whether any model was asked for.
    """

    def __init__(self, loader: Loader, device: str | None = None, quantize: str | None = None) -> None:
        self.loader = loader
        self.asked = False
        if device is not None:
            loader = replace(loader, device=device, device_map=None)
        self._loader = loader if quantize is None else replace(loader, quantize=quantize)
        self._models: WeakValueDictionary[str, Target] = WeakValueDictionary()
        self._tokenizers: dict[str, Any] = {}

    def load(self, name: str) -> tuple[Target, Any]:
        """A model and its tokenizer, by hub id, folder, `.gguf` file or "demo".

        Raises:
            ModelNotFound, UnsupportedModel, BadOption: see `Loader.load`.
        """
        self.asked = True
        model = self._models.get(name)
        if model is None:
            loaded = self._loader.load(name)
            model = self._models[name] = loaded.target
            self._tokenizers[name] = loaded.tokenizer
        return model, self._tokenizers[name]
