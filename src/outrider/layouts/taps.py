"""Which target layers an EAGLE-3 head sees: one key, counted in two ways.

vLLM's id k is the state after k layers, `hidden_states[k]`, which is how we count. SGLang adds 1 to ids that a config
names, and SpecForge, which trains for it, writes them so: its [1, n//2 - 1, n - 4] are vLLM's [2, n//2, n - 3], which
both take where nothing is named. vLLM reads the key at the top level first, SGLang below `eagle_config` only.
"""

from __future__ import annotations

from collections.abc import Sequence

from .keys import Keys

KEY = "eagle_aux_hidden_state_layer_ids"


def usual(depth: int) -> tuple[int, ...]:
    """What both engines take where a config names nothing."""
    return (2, depth // 2, depth - 3)


def take_taps(keys: Keys, depth: int, *, speculators: bool) -> tuple[tuple[int, ...], str]:
    """The taps in our numbering, and what they were concluded from.

    Args:
        keys: of the config.
        depth: layers of the target.
        speculators: the config is in that format, where vLLM's counting holds.

    Raises:
        UnsupportedModel: they are counted in a way that the config does not tell, or do not exist in this target.
    """
    top, below = keys.ids(KEY), keys.table("eagle_config")
    nested = below.ids(KEY)
    below.expect("use_aux_hidden_state", True)
    below.finish()
    if speculators and nested is not None:
        raise keys.strange(f"eagle_config.{KEY}", f"is {list(nested)}", f"{KEY} at the top level")
    if top is not None:
        if nested is not None and nested not in (top, _less(top)):
            raise keys.strange(
                f"eagle_config.{KEY}", f"is {list(nested)}", f"{list(_less(top))}, as SGLang counts {KEY} {list(top)},"
            )
        found, why = top, f"{KEY} {list(top)}, counted as vLLM does"
    elif nested is not None:
        found, why = _counted(keys, nested, depth)
    else:
        found, why = usual(depth), f"no {KEY}, so the usual ones of {depth} layers"
    if len(set(found)) != len(found) or not all(0 <= tap < depth for tap in found):
        raise keys.strange(KEY, f"means the layers {list(found)}", f"different ones from 0 to {depth - 1}")
    return found, f"It sees the target's layers {', '.join(map(str, found))} ({why})."


def _counted(keys: Keys, nested: tuple[int, ...], depth: int) -> tuple[tuple[int, ...], str]:
    """Ids below `eagle_config`, which engines count differently: told by the usual ones."""
    if nested == usual(depth):
        return nested, f"eagle_config.{KEY} {list(nested)}, the usual ones as vLLM counts"
    if nested == _less(usual(depth)):
        return tuple(one + 1 for one in nested), f"eagle_config.{KEY} {list(nested)}, the usual ones as SGLang counts"
    more = [one + 1 for one in nested]
    raise keys.strange(
        f"eagle_config.{KEY}",
        f"is {list(nested)}, which vLLM counts as it is and SGLang as {more}",
        f"{KEY} at the top level, as vLLM counts,",
    )


def taps_keys(taps: Sequence[int], depth: int) -> dict[str, object]:
    """The keys that make both engines see these layers."""
    found: dict[str, object] = {KEY: list(taps)}
    if tuple(taps) != usual(depth):
        found["eagle_config"] = {KEY: list(_less(taps)), "use_aux_hidden_state": True}
    return found


def _less(taps: Sequence[int]) -> tuple[int, ...]:
    return tuple(one - 1 for one in taps)
