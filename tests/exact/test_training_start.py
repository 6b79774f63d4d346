"""What heads begin from: the state as it is, and the target's last layers where they fit."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch

import outrider
from outrider import features
from outrider.errors import BadOption
from outrider.train.methods import METHODS, make_recipe
from outrider.train.recipe import Material, Recipe

JOINED = {"eagle3": "fc", "eagle": "fc", "mtp": "depth.eh_proj", "dflash": "fc"}
LAYERS = {"eagle3": "layers.0", "eagle": "layers.0", "mtp": "depth.block", "dflash": "layers.2"}  # the last of each
LINEARS = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]


def recipe(method: str, llm: Any, **options: Any) -> Recipe:
    """A method about to begin."""
    torch.manual_seed(4)
    material = Material(llm.target, torch.arange(60) + 40, METHODS[method].steps, options)
    return make_recipe(method, material)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("method", sorted(JOINED))
def test_layers_begin_as_the_targets(method: str, fast: bool) -> None:
    """The last as the last, from plain modules and from packed ones; EAGLE-3 reads embedding and state alike."""
    model = families.make("llama", num_hidden_layers=4)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    head = recipe(method, outrider.load(model, "none", fast=fast), start="layers").head
    layer, theirs = head.get_submodule(LAYERS[method]), model.model.layers[3]
    for name in LINEARS:
        ours, wanted = layer.get_submodule(name).weight, theirs.get_submodule(name).weight
        for half in ours.chunk(ours.shape[1] // wanted.shape[1], 1):
            assert torch.equal(half, wanted), name
    norms = {"post_attention_layernorm": theirs.post_attention_layernorm}
    if method != "eagle":  # its first layer has none before attention
        norms["hidden_norm" if method == "eagle3" else "input_layernorm"] = theirs.input_layernorm
    for name, norm in norms.items():
        assert torch.equal(layer.get_submodule(name).weight, norm.weight), name
    if method == "dflash":
        first = head.get_submodule("layers.0.mlp.up_proj").weight
        assert torch.equal(first, model.model.layers[1].mlp.up_proj.weight)


@pytest.mark.parametrize("method", sorted(JOINED))
def test_the_state_passes(method: str) -> None:
    """The last of the states that come in passes the first linear, beside small values; nothing else differs."""
    llm = outrider.load(families.make("llama"), "none", fast=False)
    usual, small = (recipe(method, llm, start=start).head for start in ("state", "small"))
    name = f"{JOINED[method]}.weight"
    for other, tensor in small.trained().items():
        if other != name:
            assert torch.equal(usual.trained()[other], tensor), other
    added = usual.trained()[name] - small.trained()[name]
    assert torch.allclose(added[:, -32:], torch.eye(32), atol=1e-6) and not bool(added[:, :-32].any())


@pytest.mark.parametrize(
    ("family", "method", "options", "says"),
    [
        ("gpt2", "eagle3", {"start": "layers"}, "their activation is None, not silu"),
        ("gemma2", "eagle3", {"start": "layers"}, "their activation is gelu_pytorch_tanh, not silu"),
        ("qwen3", "mtp", {"start": "layers"}, "theirs have a self_attn.k_norm.weight"),
        ("mixtral", "eagle", {"start": "layers"}, "theirs have a mlp.experts"),
        ("llama", "dflash", {"start": "layers", "layers": 5}, "there are 3, and the head has 5"),
        ("llama", "eagle3", {"start": "late"}, "start is 'late': choose one of small, state, layers"),
        ("llama", "eagle", {"start": "layers", "cell": "transformer:1x4"}, "Layers of a transformer:1x4 cannot begin"),
        ("llama", "eagle", {"start": "state", "cell": "gru"}, "leave start out"),
    ],
)
def test_what_does_not_fit(family: str, method: str, options: dict[str, Any], says: str) -> None:
    """Is refused in one sentence."""
    llm = outrider.load(families.make(family), "none", fast=False)
    with pytest.raises(BadOption, match=says) as caught:
        recipe(method, llm, **options)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("fast", [False, True])
def test_a_qwen_begins_too(fast: bool) -> None:
    """DFlash norms its queries and keys as Qwen 3 does; EAGLE leaves out the biases of Qwen 2."""
    model = families.make("qwen3")
    head = recipe("dflash", outrider.load(model, "none", fast=fast), start="layers").head
    ours, theirs = head.get_submodule("layers.2.self_attn"), model.model.layers[2].self_attn
    assert torch.equal(ours.q_norm.weight, theirs.q_norm.weight)
    model = families.make("qwen2")
    head = recipe("eagle", outrider.load(model, "none", fast=fast), start="layers").head
    assert torch.allclose(head.layers[0].self_attn.q_proj.weight, model.model.layers[2].self_attn.q_proj.weight)


def test_positions_are_the_targets() -> None:
    """Base, stretching and epsilon, so that layers of the target's mean what they did."""
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    llm = outrider.load(families.make("llama", rope_parameters=rope, rms_norm_eps=1e-6), "none", fast=False)
    block = features.block_shape(llm.target)
    assert (block.rope_theta, block.eps) == (5e5, 1e-6)
    assert block.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert features.block_shape(outrider.load(families.make("gpt2"), "none").target).rope_scaling is None
