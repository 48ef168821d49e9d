"""A run read back from its folder."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deepff.activations.activations import Activations, FeatureSource, ImageRecord
from deepff.activations.cache import ActivationCache
from deepff.errors import InputError, first_line
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import (
    Images,
    Origin,
    SetImage,
    origin_digest,
    origin_size,
    resolve_images,
)
from deepff.images.reading import SkippedFile
from deepff.images.samples import sample_image
from deepff.images.stored import ADDRESS, StoredFile
from deepff.layers.layer import extent_from
from deepff.meaning.importance import Importance
from deepff.meaning.open_network import opened_layers
from deepff.networks.backbone import Backbone
from deepff.report.manifest import complete_manifest
from deepff.report.save import OBJECT
from deepff.result import ClassResults, Result
from deepff.results.concept_bank import FILE as BANK
from deepff.results.concept_bank import ConceptBank, load_concepts
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.files import read_json
from deepff.runtime.outputs import CLASS_FOLDERS, read_manifest


def load(
    folder: str | Path,
    images: Images | None = None,
    model: nn.Module | Backbone | None = None,
) -> Result | ClassResults:
    """Load the result that a run left in ``folder``; nothing is written.

    Parameters
    ----------
    folder : path
        Of a result, or of the results of all classes.
    images : optional
        Where the images are now, if they were moved or were no files, as for
        :func:`deepff.discover`. They are matched by name, or its last part, and by content: the
        file's digest where it is known, else the size in pixels. Others stay where they were.
    model : torch.nn.Module or Backbone, optional
        The network, where it is yours: ``importance`` and ``similar`` run it again.

    Raises
    ------
    InputError
        If the folder holds no result or an unfinished one, no image matches, or the network
        is a different one.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.astronaut()]
    >>> deepff.discover(images, n_components=2, size=224).save("result")
    >>> result = deepff.load("result", images=images)  # files are found where they were
    >>> result.names, result.model, result.layer
    (['0', '1'], 'efficientnet_lite0', 'bn2')
    """
    record = Path(folder) / CLASS_FOLDERS
    if not record.is_file():
        return load_result(folder, images, model)
    pairs = read_json(record, [[(str, int, float), str], ...])
    each = {label: load_result(record.parent / name, images, model) for label, name in pairs}
    return ClassResults(each)


def load_result(
    folder: str | Path, images: Images | None = None, model: nn.Module | Backbone | None = None
) -> Result:
    """As :func:`load`, of one result."""
    folder = Path(folder)
    manifest = complete_manifest(folder)
    bank = load_concepts(folder / BANK)
    shards = _shards(folder / "heatmaps")
    stretch = bank.sources[0].stretch
    used = [entry for entry in manifest["images"] if entry["status"] == "used"]
    records = [_image_record(entry, stretch) for entry in used]
    if images is not None:
        records = _with_origins(records, resolve_images(images))
    agreements = manifest["agreements"]
    try:
        factorizations = _factorizations(shards, bank, records, manifest)
        importances = {
            int(k): Importance.from_dict(values)
            for k, values in (manifest["importance"] or {}).items()
            if bank.components[int(k)] is not None  # KeyError for another k
        }
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"the files in {folder} are damaged or from different results ({first_line(error)}); "
            "run the command again"
        ) from error
    object_manifest = read_manifest(folder / OBJECT) or {}
    has_object = object_manifest.get("status") == "complete"
    backbone = None if model is None else bank.sources[0].backbone(model=model)
    result = Result(
        images=records,
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
        agreements=agreements and {int(k): value for k, value in agreements.items()},
        channel_weights=bank.channel_weights,
        recipe=manifest["recipe"],
        separation=manifest["separation"],
        object=load_result(folder / OBJECT, images, backbone) if has_object else None,
        parts_of=manifest["parts_of"],
        applied=bank if manifest["applied"] else None,
        importances=importances,
        unnamed=manifest["unnamed"],
        activations=_cached_activations(manifest["cache"], bank.sources, records),
        created=manifest["created"],
    )
    if backbone is not None:
        result.opened = opened_layers(result, backbone)
    return result


def _factorizations(
    shards: list[dict[str, Tensor]],
    bank: ConceptBank,
    records: list[ImageRecord],
    manifest: dict[str, Any],
) -> dict[int, Factorization]:
    """The factorizations by k."""
    if {int(k) for k in manifest["factorizations"]} != bank.components.keys():
        raise ValueError("other numbers of factors")
    factorizations = {}
    for k, components in bank.components.items():
        coefficients = _rows(shards, f"k{k}", k)
        facts = manifest["factorizations"][str(k)]
        if facts["relative_error"] is None:
            facts["relative_error"] = math.nan
        scale = bank.histograms[k].high if manifest["applied"] else None
        probabilities = None
        if k in bank.classifiers:
            rows = _rows(shards, f"k{k}.classified", k)
            grids = [(height, width) for height, width in manifest["cells"]]
            sizes = [record.size for record in records]
            # Results of versions without receptive-field centers have no extents.
            extents = [extent_from(ends) for ends in manifest["cell_extents"] or ()] or None
            probabilities = HeatMaps(rows, grids, sizes, torch.ones(k), extents)
        heatmaps = HeatMaps.of_images(coefficients, records, scale)
        scores = None
        if all(f"k{k}.scores" in shard for shard in shards):
            rows = _rows(shards, f"k{k}.scores", k)
            scores = heatmaps.replace(coefficients=rows, scale=torch.ones(k))
        factorizations[k] = Factorization(
            components,
            heatmaps,
            **facts,
            classifier=bank.classifiers.get(k),
            probabilities=probabilities,
            known=None if scores is None else bank.known,
            scores=scores,
            classes=bank.classes.get(k),
        )
    return factorizations


def _rows(shards: list[dict[str, Tensor]], name: str, k: int) -> Tensor:
    """The coefficients (rows, k) of that name."""
    rows = torch.cat([shard[name] for shard in shards])
    if rows.shape[1:] != (k,) or not rows.is_floating_point():
        raise ValueError(f"{name} holds {rows.dtype} {tuple(rows.shape)}")
    return rows


def _shards(folder: Path) -> list[dict[str, Tensor]]:
    """The coefficients, as `save` cut them."""
    paths = sorted(folder.glob("*.safetensors"))
    try:
        shards = [load_file(path) for path in paths]
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"the heat maps in {folder} are damaged ({error}); run the command again"
        ) from error
    if not shards:
        raise InputError(f"the heat maps in {folder} are missing; run the command again")
    return shards


def _with_origins(records: list[ImageRecord], images: list[SetImage]) -> list[ImageRecord]:
    """The records with the origins of the same images, by name and content."""
    by_file_name: dict[str, list[SetImage]] = {}
    for image in images:
        by_file_name.setdefault(Path(image.name).name, []).append(image)
    matched = []
    for record in records:
        candidates = by_file_name.get(Path(record.name).name, [])
        candidates = sorted(candidates, key=lambda one: one.name != record.name)
        origin = next((one.origin for one in candidates if _is_same(record, one)), None)
        matched.append(record if origin is None else replace(record, origin=origin))
    if all(new is old for new, old in zip(matched, records, strict=True)):
        raise InputError(
            "none of the given images belongs to the result, by name and content; the result's "
            f"first image is {records[0].name}, {records[0].size[1]} × {records[0].size[0]} pixels"
        )
    return matched


def _is_same(record: ImageRecord, image: SetImage) -> bool:
    try:
        if record.digest is not None:
            return origin_digest(image.origin) == record.digest
        return origin_size(image.origin) == record.size
    except (UnreadableImageError, OSError):
        return False


def _cached_activations(
    cache: str | None, sources: tuple[FeatureSource, ...], images: list[ImageRecord]
) -> Activations | None:
    if cache is None or not Path(cache).is_dir() or len(sources) > 1:
        return None
    blocks = ActivationCache(cache, sources[0]).find(images)
    return None if blocks is None else Activations(images, blocks, sources[0])


def _image_record(entry: dict[str, Any], stretch: bool) -> ImageRecord:
    path = entry.get("path")
    origin: Origin = sample_image(entry["name"])
    if path is not None:
        origin = StoredFile(path) if ADDRESS.match(path) else Path(path)
    return ImageRecord(
        name=entry["name"],
        origin=origin,
        size=tuple(entry["size"]),
        grid=tuple(entry["grid"]),
        digest=entry.get("digest"),
        stretch=stretch,
        extent=extent_from(entry.get("extent")),
    )
