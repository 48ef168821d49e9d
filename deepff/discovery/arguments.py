"""What discover, discover_parts and apply are called with: checked, completed, and shown again."""

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from torch import nn

from deepff.activations.activations import FeatureSource
from deepff.errors import InputError, warn_user
from deepff.factorization import METHODS, Factorizer
from deepff.factorization.estimator import checked_seed
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import (
    ImageItem,
    Images,
    SetImage,
    origin_size,
    resolve_images,
)
from deepff.images.stored import public
from deepff.layers.layer import Layer
from deepff.layers.layer_map import LayerChoice, LayerMap
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import BATCH_SIZE, MIN_MEMORY, MODEL, SIZE, Device, Method, chosen
from deepff.runtime import distributed

_N_SIDES = 32  # images whose sides say how large those of the set are
_MOST_ENLARGED = 4  # times, without a warning

Model = str | nn.Module | Backbone
FactorCounts = int | Iterable[int] | Literal["auto"]


class RunOptions(TypedDict, total=False):
    """The keyword arguments that discover and discover_parts share; see :func:`deepff.discover`."""

    model: Model
    size: int | None
    random_state: int
    batch_size: int
    cache: str | Path | None
    memory: int | None
    device: str
    amp: bool
    stretch: bool
    normalized: bool
    progress: bool


class DiscoverOptions(RunOptions, total=False):
    """The keyword arguments of discover, without ``classes``."""

    layer: LayerChoice | Sequence[LayerChoice] | None
    method: str | Factorizer
    recipe: str
    channel_weights: str | None
    kinds: int | Literal["auto"]


@dataclass(frozen=True)
class RunSettings:
    """:class:`RunOptions` with their defaults."""

    model: Model = MODEL
    size: int | None = None
    random_state: int = 0
    batch_size: int = BATCH_SIZE
    cache: str | Path | None = None
    memory: int | None = None
    device: str = Device.AUTO
    amp: bool = False
    stretch: bool = False
    normalized: bool = False
    progress: bool = False

    def checked(self) -> "RunSettings":
        """The settings with whole numbers as int, each in its range."""
        if self.memory is not None and (
            whole_number(self.memory, "memory, in bytes,", 0) < MIN_MEMORY
        ):
            raise InputError(
                f"{self.memory} bytes of memory are too few; use {MIN_MEMORY // 2**20} MiB or more"
            )
        size = None if self.size is None else whole_number(self.size, "size", 1)
        batch_size = whole_number(self.batch_size, "batch_size", 1)
        seed = whole_number(self.random_state, "random_state", 0)
        checked_seed(seed)
        return replace(
            self,
            size=size,
            batch_size=batch_size,
            random_state=seed,
            # One rank's bar stands for all.
            progress=self.progress and distributed.rank() == 0,
        )

    def opened(self, images: Images) -> tuple[list[SetImage], Backbone]:
        """The images, as they were before a normalization, and the network on its device; one that
        is open stays where it is."""
        files = [] if self.normalized else resolve_images(images)  # before a slow network
        backbone = (
            self.model
            if isinstance(self.model, Backbone)
            else load_backbone(self.model, device=self.device)
        )
        return normalized_images(images, backbone) if self.normalized else files, backbone

    def with_size(self, backbone: Backbone, images: Sequence[SetImage]) -> "RunSettings":
        """With a size: 448 by default, or less for small images in a network of one's own."""
        sides = []
        for image in images[:_N_SIDES]:
            with suppress(UnreadableImageError):
                sides.append(max(origin_size(image.origin)))
        largest = max(sides, default=SIZE)
        size = self.size or (min(SIZE, largest) if backbone.structure else SIZE)
        if size > _MOST_ENLARGED * largest:
            warn_user(
                f"the images are at most {largest} pixels wide or high and are enlarged "
                f"{size / largest:.0f} times, to {size}; a smaller size is faster",
                above=2,
            )
        return replace(self, size=size)

    @property
    def rank_cache(self) -> str | Path | None:
        """This rank's cache folder: several processes do not share one index."""
        if self.cache is None or distributed.n_ranks() == 1:
            return self.cache
        return Path(self.cache) / f"rank-{distributed.rank()}-of-{distributed.n_ranks()}"


def normalized_images(images: Images, by: Backbone | FeatureSource) -> list[SetImage]:
    """Tensors that are normalized already, as the images that they were before."""
    files = resolve_images(images, (by.mean, by.std))
    if not all(isinstance(file, ImageItem) for file in files):
        raise InputError("normalized=True is for tensors, and files are not normalized")
    return files


@dataclass(frozen=True)
class Estimators:
    """The unfitted estimators of one method, one for each k."""

    name: str  # of options.Method, or the class of somebody's own estimator
    options: dict[str, Any]  # those that are not the default
    for_k: Callable[[int], Factorizer]

    @classmethod
    def of(cls, method: str | Factorizer, settings: RunSettings) -> "Estimators":
        """The method of that name, or copies of an estimator with another number of factors."""
        ours = {"random_state": settings.random_state, "memory": settings.memory}
        if isinstance(method, str):
            name = chosen(Method, method, "method")
            taken = {} if name == Method.AUTO else inspect.signature(METHODS[name]).parameters
            seeded = {key: value for key, value in ours.items() if key in taken}
            return cls(name, {}, lambda k: METHODS[name](k, **seeded))
        from sklearn.base import clone

        template = clone(method)
        defaults = inspect.signature(type(method)).parameters
        values = template.get_params()
        options = {
            name: value
            for name, value in values.items()
            if name not in ("n_components", "memory") and value != defaults[name].default
        }
        missing = {name: value for name, value in ours.items() if values.get(name, 0) is None}
        names = {estimator: name for name, estimator in METHODS.items()}
        return cls(
            names.get(type(method), type(method).__name__),
            options,
            lambda k: clone(template).set_params(n_components=k, **missing),
        )

    def settled(self, layers: Sequence[Layer], settings: RunSettings) -> "Estimators":
        """Itself, or in place of "auto" NMF, or semi-NMF where one of the layers goes negative."""
        if self.name != Method.AUTO:
            return self
        is_signed = not all(layer.non_negative for layer in layers)
        return Estimators.of(Method.SEMI_NMF if is_signed else Method.NMF, settings)


def factor_counts_of(n_components: FactorCounts) -> list[int] | Literal["auto"]:
    """Numbers of factors, ascending, or "auto"; raises InputError for anything else."""
    if n_components == "auto":
        return "auto"
    if isinstance(n_components, str) or not isinstance(n_components, numbers.Integral | Iterable):
        raise InputError(f'n_components is {n_components!r}; give a number, several, or "auto"')
    counts: list[Any] = list(n_components) if isinstance(n_components, Iterable) else [n_components]
    if not counts or not all(isinstance(k, numbers.Integral) and int(k) >= 1 for k in counts):
        raise InputError(
            f"the number of factors must be a whole number, 1 or more, not {n_components}"
        )
    return sorted({int(k) for k in counts})


def whole_number(value: Any, what: str, least: int) -> int:
    """The value as an ``int``, NumPy's integers too; raises InputError below the least."""
    if not isinstance(value, numbers.Integral) or int(value) < least:
        raise InputError(f"{what} must be a whole number, {least} or more, not {value!r}")
    return int(value)


def check_factor_counts(counts: list[int] | Literal["auto"], layers: Sequence[Layer]) -> None:
    """Raise InputError for more factors than a layer has channels, before the network runs."""
    layer = min(layers, key=lambda layer: layer.channels)
    if counts != "auto" and max(counts) > layer.channels:
        raise InputError(
            f"k is {max(counts)}, but layer {layer.name} has only {layer.channels} channels; use a "
            "smaller k"
        )


def check_activations(layer_map: LayerMap, layers: Sequence[Layer], by_nmf: bool) -> None:
    """Raise InputError for layers that are NaN, or that go negative where NMF is to factorize."""
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
            f"layer {layer.name} of {name} has values down to {layer.minimum:.3g}, but NMF needs "
            f"activations that are never negative; {other}use the method semi-nmf"
        )


def shown_call(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """The call of a public function with these arguments, without those that are the default."""
    parameters = inspect.signature(function).parameters
    shown = []
    for name, value in arguments.items():
        if name not in parameters and name not in RunOptions.__annotations__:
            continue
        default = parameters[name].default if name in parameters else getattr(RunSettings, name)
        if default is inspect.Parameter.empty:
            shown.append(_shown(value))
        # An array has no one answer to whether it equals the default.
        elif value is not default and not (
            isinstance(value, str | int | float) and value == default
        ):
            shown.append(f"{name}={_shown(value)}")
    return f"deepff.{function.__name__}({', '.join(shown)})"


_MOST_SHOWN = 20


def _shown(value: Any) -> str:
    if isinstance(value, str | Path):
        return repr(public(str(value)))
    if isinstance(value, Backbone):
        return value.name
    if isinstance(value, int | float | bool | None):
        return repr(value)
    if hasattr(value, "get_params"):  # an estimator
        return f"deepff.{value!r}"
    path = getattr(value, "path", None)
    if isinstance(path, PathLike):
        return repr(str(path))
    if isinstance(value, list | tuple | range):
        shown = [_shown(item) for item in cast(Sequence[Any], value)[:_MOST_SHOWN]]
        return f"[{', '.join(shown)}{', …' if len(value) > len(shown) else ''}]"
    return f"<{type(value).__name__}>"
