"""A small draft model distilled from its target (DistillSpec, 2310.08461): some of the target's own layers, trained on
the target's law over the target's answers, and at the end over texts that the small model goes on with by itself.

What comes out is a model as Transformers knows it, with the target's tokenizer.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import checkpoints, features
from ..checkpoints import Checkpoint
from ..drafters import Drafter
from ..drafters.model import ModelDrafter
from ..errors import BadOption, UnsupportedModel
from ..heads.whole import Whole, layers_name
from ..target import Target, TransformersTarget
from .answers import Answer
from .corpus import Batch, OnlineFeatures, collate
from .generation import Job, write_answers
from .laws import soft_loss, target_law
from .recipe import Losses, Material, Recipe, ahead
from .unrolled import collect

_AT_ONCE = 16  # texts that the small model goes on with at a time


class DraftRecipe(Recipe):
    """Distils a draft model.

    Args:
        material: what it starts from.
        layers: of the small model: the first and the last of the target's, half of each.
        on_policy: share of the run, its last, in which texts go on with the small model's own words.
        drawn: tokens that it writes of each text.
    """

    method, rate, steps, kind, lead, chooses_steps, reduces = "draft", 5e-4, 1, "model", 1, False, False
    parts = False  # the small model writes while it learns, through a target that shares its weights
    head: Whole

    def __init__(self, material: Material, *, layers: int = 4, on_policy: float = 0.25, drawn: int = 32) -> None:
        super().__init__()
        target = material.target
        depth = features.depth_of(target)
        self.taps = ()  # texts are all that it sees
        if not 1 <= layers < depth:
            raise BadOption(f"layers is {layers}: a draft model of this target has from 1 to {depth - 1}.")
        if not 0 <= on_policy <= 1 or drawn < 1:
            raise BadOption("on_policy has to be a share from 0 to 1, and drawn 1 or more.")
        kept = [*range(layers - layers // 2), *range(depth - layers // 2, depth)]
        self.head = Whole(shortened(material.model(), kept))
        self._output = features.output(target).float()
        self._online = OnlineFeatures(target, self.taps)
        self._small, self._loop = TransformersTarget(self.head.model), material.loop
        self._on_policy, self._drawn = on_policy, drawn

    @property
    def shape(self) -> dict[str, Any]:
        """See `Recipe`: the model's own config.json says it."""
        return {}

    def losses(self, batch: Batch) -> Losses:
        """See `Recipe`."""
        if batch.done >= 1 - self._on_policy:
            batch = self._gone_on(batch)

        def loss(logits: Tensor, step: int, counts: Tensor) -> tuple[Tensor, Tensor]:
            return soft_loss(logits, target_law(ahead(batch.last, step)[counts], self._output))

        return collect(iter([self.head.logits(batch.ids)]), batch, 1.0, loss, lead=self.lead)

    def _gone_on(self, batch: Batch) -> Batch:
        """The same texts up to a place in their answers, and from there what the small model writes."""
        jobs, chance = [], random.Random(batch.seed)
        for number, (ids, mask) in enumerate(zip(batch.ids, batch.answer, strict=True)):
            first, end = int(mask.nonzero()[0]), int(mask.nonzero()[-1]) + 1
            cut = chance.randrange(first, max(first, end - self._drawn) + 1)
            jobs.append(Job(number, tuple(ids[:cut].tolist()), 1.0, chance.getrandbits(48), "", False))
        found = write_answers(self._loop(self._small), jobs, _AT_ONCE, self._drawn)
        texts: Sequence[Answer] = sorted(found, key=lambda answer: answer.number)
        return replace(collate(texts, self._online, batch.seed), done=batch.done)

    def drafter(self, target: Target) -> Drafter:
        """See `Recipe`."""
        return ModelDrafter(self._small, target.vocabulary, spec=self.method)

    def fill(self, work: Path, checkpoint: Checkpoint, card: str, tokenizer: Any) -> None:
        """See `Recipe`."""
        save_model(self.head.model, tokenizer, work)
        checkpoints.describe(work, checkpoint.manifest, card)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model as Transformers reads it."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def shortened(model: Any, kept: Sequence[int]) -> Any:
    """A model with these of its decoder layers alone, and the rest as it is; its weights are copies.

    Raises:
        UnsupportedModel: its layers are no list.
    """
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    depth = int(text.num_hidden_layers)
    try:
        stack = layers_name(model) + "."
        for name, value in text.to_dict().items():
            if isinstance(value, list) and len(value) == depth:  # one for each layer, as layer_types is
                setattr(text, name, [value[index] for index in kept])
        text.num_hidden_layers = len(kept)
        small = type(model)(config).to(model.device, model.dtype).eval()
        places = {old: new for new, old in enumerate(kept)}
        weights = {}
        for name, tensor in model.state_dict().items():
            if name.startswith(stack):
                index, _, rest = name.removeprefix(stack).partition(".")
                if int(index) not in places:
                    continue
                name = f"{stack}{places[int(index)]}.{rest}"
            weights[name] = tensor
        small.load_state_dict(weights)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be made smaller by leaving out layers "
            f"({(str(error).splitlines() or [''])[0].rstrip('.:')}): train another kind of drafter."
        ) from error
    small.generation_config = copy.deepcopy(model.generation_config)
    return small
