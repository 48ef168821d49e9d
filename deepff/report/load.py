"""A run read back from its folder."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from deepff.errors import InputError
from deepff.features.activations import Activations, ImageRecord
from deepff.features.cache import ActivationCache
from deepff.features.source import FeatureSource
from deepff.images.reading import SkippedFile
from deepff.report.save import OBJECT, read_manifest
from deepff.results.concepts import FILE as BANK
from deepff.results.concepts import load_concepts
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.result import Result


def load(folder: str | Path) -> Result:
    """Load the result that a run left in ``folder``.

    Raises
    ------
    InputError
        If the folder holds no result, or one that was not finished.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no deepff result (it has no manifest.json of one)")
    if manifest["status"] != "complete":
        raise InputError(f"the run in {folder} was not finished; run its command again")
    images = [_image_record(entry) for entry in manifest["images"] if entry["status"] == "used"]
    bank = load_concepts(folder / BANK)
    shards = [load_file(path) for path in sorted((folder / "heatmaps").glob("*.safetensors"))]
    factorizations = {}
    for k, components in bank.components.items():
        coefficients = torch.cat([shard[f"k{k}"] for shard in shards])
        facts = manifest["factorizations"][str(k)]
        scale = bank.levels[k].high if manifest["applied"] else None
        heatmaps = HeatMaps.of_images(coefficients, images, scale)
        factorizations[k] = Factorization(components, heatmaps, **facts)
    return Result(
        images=images,
        skipped=[
            SkippedFile(entry["name"], entry["reason"])
            for entry in manifest["images"]
            if entry["status"] == "skipped"
        ],
        factorizations=factorizations,
        method=manifest["method"],
        sources=bank.sources,
        options=manifest["options"],
        command=manifest["command"],
        seconds=manifest["seconds"],
        cache=manifest["cache"],
        agreements=_agreements(manifest),
        channel_weights=bank.channel_weights,
        recipe=manifest["recipe"],
        separation=manifest["separation"],
        object=_load_object(folder / OBJECT),
        parts_of=manifest["parts_of"],
        bank=bank if manifest["applied"] else None,
        activations=_cached_activations(manifest["cache"], bank.sources, images),
        created=manifest["created"],
    )


def _load_object(folder: Path) -> Result | None:
    manifest = read_manifest(folder)
    return load(folder) if manifest is not None and manifest["status"] == "complete" else None


def _cached_activations(
    cache: str | None, sources: tuple[FeatureSource, ...], images: list[ImageRecord]
) -> Activations | None:
    if cache is None or not Path(cache).is_dir() or len(sources) > 1:
        return None
    store = ActivationCache(cache, sources[0])
    store.reserve(images)
    return Activations(images, store.blocks(images)) if all(map(store.holds, images)) else None


def _agreements(manifest: dict[str, Any]) -> dict[int, float] | None:
    agreements = manifest.get("agreements")
    return None if agreements is None else {int(k): value for k, value in agreements.items()}


def _image_record(entry: dict[str, Any]) -> ImageRecord:
    return ImageRecord(
        name=entry["name"],
        path=Path(entry["path"]),
        size=tuple(entry["size"]),
        grid=tuple(entry["grid"]),
        digest=entry["digest"],
    )
