"""A network run over an image set: what discovering, applying and teaching start with."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from deepff.activations.activations import Activations, FeatureSource, Preparation, sources_of
from deepff.activations.extraction import extract_layers
from deepff.discovery.arguments import RunSettings
from deepff.images.image_set import SetImage, own_share
from deepff.images.reading import SkippedFile
from deepff.layers.centers import with_centers
from deepff.layers.later import OpenLayer
from deepff.layers.layer import Layer
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.options import SIZE
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.runtime import distributed
from deepff.runtime.progress import Stopwatch


@dataclass(frozen=True)
class ActivationSet:
    """The activations of several layers for the same images: over several ranks, this rank's."""

    backbone: Backbone
    layers: dict[str, Layer]  # by path, with receptive-field centers
    activations: dict[str, Activations]
    skipped: list[SkippedFile]

    @classmethod
    def extracted(
        cls,
        images: Sequence[SetImage],
        backbone: Backbone,
        layers: Sequence[Layer],
        settings: RunSettings,
        watch: Stopwatch | None = None,
    ) -> Self:
        """Measure the layers' centers and run the network over this rank's share of the images."""
        watch = watch or Stopwatch()
        distinct = list({layer.path: layer for layer in layers}.values())
        centered = with_centers(backbone, distinct, settings.rank_cache)
        watch.lap("receptive fields")
        extracted, skipped = extract_layers(
            own_share(images),
            backbone,
            centered,
            Preparation(settings.size or SIZE, settings.stretch, settings.amp),
            batch_size=settings.batch_size,
            cache=settings.rank_cache,
            memory=settings.memory,
            progress=settings.progress,
        )
        watch.lap("network")
        layers_by_path = {layer.path: layer for layer in centered}
        by_path = dict(zip(layers_by_path, extracted, strict=True))
        return cls(backbone, layers_by_path, by_path, skipped)

    @classmethod
    def prepared_as(
        cls,
        sources: Sequence[FeatureSource],
        images: Sequence[SetImage],
        settings: RunSettings,
        model: nn.Module | Backbone | None = None,
        watch: Stopwatch | None = None,
    ) -> Self:
        """The same layers of the same network for other images, prepared as recorded. ``model`` is
        the network where it cannot be loaded by its name. Of the settings, batch size, cache,
        device and progress are used."""
        watch = watch or Stopwatch()
        first = sources[0]
        backbone = first.backbone(model=model, device=settings.device)
        layer_map = map_layers(backbone, first.size)
        layers = {source.layer: source.resolved(layer_map) for source in sources}
        watch.lap("loading the network")
        extracted, skipped = extract_layers(
            images,
            backbone,
            list(layers.values()),
            first.preparation(backbone.device),
            batch_size=settings.batch_size,
            cache=settings.cache,
            progress=settings.progress,
        )
        watch.lap("network")
        return cls(backbone, layers, dict(zip(layers, extracted, strict=True)), skipped)

    def restricted(self, is_kept: Sequence[bool]) -> Self:
        """The same for some of this rank's images."""
        by_path = {path: A.restricted(is_kept) for path, A in self.activations.items()}
        return replace(self, activations=by_path)

    def of(self, layers: Sequence[Layer]) -> list[Activations]:
        """The activations of these layers."""
        return [self.activations[layer.path] for layer in layers]


@dataclass(frozen=True)
class Findings:
    """What a recipe finds in an image set."""

    activation_set: ActivationSet
    layers: Sequence[Layer]  # that were factorized
    factorizations: dict[int, Factorization]  # by k
    method: str
    options: dict[str, Any] = field(default_factory=dict)  # of the method, without the seed
    agreements: dict[int, float] | None = None  # by which k was chosen
    channel_weights: Tensor | None = None  # (c,), the layers' one after the other
    separation: float | None = None  # how well they tell the inside of the images from the border
    is_object: bool = False  # one map, fused from those of the layers


def result_of(findings: Findings, settings: RunSettings, **facts: Any) -> Result:
    """The findings as a result over the images of all ranks, with names and further ``facts``."""
    activation_set = findings.activation_set
    activations = activation_set.of(findings.layers)
    finest = min(findings.layers, key=lambda layer: layer.stride)
    is_shared = distributed.n_ranks() > 1
    result = Result(
        images=distributed.gather(activation_set.activations[finest.path].images),
        skipped=distributed.gather(activation_set.skipped),
        factorizations=findings.factorizations,
        method=findings.method,
        sources=sources_of(activations),
        options={"random_state": settings.random_state, **findings.options},
        agreements=findings.agreements,
        channel_weights=findings.channel_weights,
        separation=findings.separation,
        cache=None if settings.cache is None or is_shared else str(Path(settings.cache).resolve()),
        activations=None if findings.is_object or is_shared else activations[0],
        opened=tuple(
            OpenLayer(activation_set.backbone, activation_set.layers[layer.path])
            for layer in findings.layers
        ),
        **facts,
    )
    result.name_factors(settings.progress)
    return result
