"""What discover, discover_parts and apply are given: checked, completed, and shown again."""

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from deepff.errors import InputError
from deepff.factorization.estimator import checked_seed
from deepff.layers.layer import Layer
from deepff.layers.layer_map import LayerMap
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import MIN_MEMORY
from deepff.runtime import distributed

Model = str | nn.Module | Backbone
FactorCounts = int | Iterable[int] | Literal["auto"]


def opened_backbone(model: Model, device: str) -> Backbone:
    """A network by name, or one's own, on the device; one that is open already as it is."""
    return model if isinstance(model, Backbone) else load_backbone(model, device=device)


def factor_counts_of(n_components: FactorCounts) -> list[int] | Literal["auto"]:
    """Numbers of factors, ascending, or "auto".

    Raises
    ------
    InputError
        They are none, no whole numbers, or below 1.
    """
    if n_components == "auto":
        return "auto"
    if isinstance(n_components, str) or not isinstance(n_components, numbers.Integral | Iterable):
        raise InputError(f'n_components is {n_components!r}; give a number, several, or "auto"')
    counts: list[Any] = (
        [n_components] if isinstance(n_components, numbers.Integral) else list(n_components)
    )
    if not counts or not all(isinstance(k, numbers.Integral) and int(k) >= 1 for k in counts):
        raise InputError(
            f"the number of factors must be a whole number, 1 or more, not {n_components}"
        )
    return sorted({int(k) for k in counts})


def whole_number(value: Any, what: str, least: int) -> int:
    """The value as an ``int``, NumPy's integers too.

    Raises
    ------
    InputError
        It is no whole number, or below the least.
    """
    if not isinstance(value, numbers.Integral) or int(value) < least:
        raise InputError(f"{what} must be a whole number, {least} or more, not {value!r}")
    return int(value)


def seed_of(random_state: Any) -> int:
    """The seed of a run, which is told again in its manifest, as an ``int``.

    Raises
    ------
    InputError
        It is no whole number from 0 to 2³² − 1.
    """
    checked_seed(whole_number(random_state, "random_state", 0))
    return int(random_state)


def check_factor_counts(counts: list[int] | Literal["auto"], layers: Sequence[Layer]) -> None:
    """Raise InputError for more factors than a layer has channels, before the network runs."""
    layer = min(layers, key=lambda layer: layer.channels)
    if counts != "auto" and max(counts) > layer.channels:
        raise InputError(
            f"layer {layer.name} has {layer.channels} channels, too few for {max(counts)} factors"
        )


def check_memory(memory: int | None) -> None:
    """Raise InputError for a bound too small for the sample of rows that factors start from."""
    if memory is not None and whole_number(memory, "memory, in bytes,", 0) < MIN_MEMORY:
        raise InputError(
            f"{memory} bytes are too little memory; give {MIN_MEMORY // 2**20} MiB or more"
        )


def check_activations(layer_map: LayerMap, layers: Sequence[Layer], by_nmf: bool) -> None:
    """Raise InputError for layers that are NaN, or that go negative where NMF is to factorise them.

    Parameters
    ----------
    layer_map : LayerMap
    layers : sequence of Layer
    by_nmf : bool
    """
    name = layer_map.backbone.name
    for layer in layers:
        if math.isnan(layer.minimum):
            raise InputError(
                f"the activations of layer {layer.name} are NaN; check the weights of {name}"
            )
        if layer.non_negative or not by_nmf:
            continue
        nearby = layer_map.nearby_non_negative(layer)
        other = f"choose a layer that does not, such as {', '.join(nearby)}, or " if nearby else ""
        raise InputError(
            f"layer {layer.name} of {name} goes down to {layer.minimum:.3g}, and NMF needs "
            f"activations that are never negative; {other}use the method semi-nmf"
        )


def own_cache(cache: str | Path | None) -> str | Path | None:
    """The folder of this rank: several processes do not share one index."""
    if cache is None or distributed.n_ranks() == 1:
        return cache
    return Path(cache) / f"rank-{distributed.rank()}-of-{distributed.n_ranks()}"


def shown_call(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """The call of a public function with these arguments, without those that are the default."""
    parameters = inspect.signature(function).parameters
    given = [
        _shown(value)
        if parameters[name].default is inspect.Parameter.empty
        # An array has no one answer to whether it equals the default.
        else f"{name}={_shown(value)}"
        for name, value in arguments.items()
        if name in parameters
        and value is not parameters[name].default
        and not (isinstance(value, str | int | float) and value == parameters[name].default)
    ]
    return f"deepff.{function.__name__}({', '.join(given)})"


_MOST_SHOWN = 20


def _shown(value: Any) -> str:
    if isinstance(value, str | Path):
        return repr(str(value))
    if isinstance(value, Backbone):
        return value.name
    if isinstance(value, int | float | bool | None):
        return repr(value)
    if hasattr(value, "get_params"):  # an estimator
        return f"deepff.{value!r}"
    path = getattr(value, "path", None)
    if isinstance(path, Path):
        return repr(str(path))
    if isinstance(value, list | tuple | range):
        shown = [_shown(item) for item in cast(Sequence[Any], value)[:_MOST_SHOWN]]
        return f"[{', '.join(shown)}{', …' if len(value) > len(shown) else ''}]"
    return f"<{type(value).__name__}>"
