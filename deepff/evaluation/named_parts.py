"""Table 3: parts of cows and horses from factors that a person names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.evaluation.baselines import factor_coefficients
from deepff.evaluation.datasets import TABLE3_PARTS, load_pascal_part
from deepff.evaluation.metrics import iou
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    Features,
    Network,
    attempt,
    collect,
    count_by_variant,
    failure_notes,
    image_masks,
    require_success,
    to_stderr,
)
from deepff.evaluation.tables import Row, Table, mean_of_known, published_rows
from deepff.regions.part_names import read_parts
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.files import atomic_path
from deepff.runtime.outputs import REPLACE_OWN, output_folder

N_FACTORS = 3
LOOKED_AT = 5
MAPPING_SUFFIXES = {DFF: "", "PCA": "-pca", "k-means": "-kmeans"}
_METHODS = (DFF, DFF_CRF, "PCA", "k-means")
LABEL_HEIGHT = 20
_PANEL_SIDE = 400


@dataclass(frozen=True)
class NamedPartScores:
    """IoU of each part of one class, for every method whose factors are named."""

    n_images: int
    ious: Mapping[str, list[float]]


def table3(
    network: Network,
    root: str | Path,
    *,
    mappings: Sequence[Path] = (),
    overlays: Path | None = None,
    classes: Sequence[str] = tuple(TABLE3_PARTS),
    crf: bool = True,
    report: Callable[[str], None] = to_stderr,
) -> Table:
    """IoU of head, neck + torso and legs on PASCAL-Part's cows and horses, k = 3.

    A person looks at five images of a class and writes which factor is which part; factors keep
    their numbers from run to run, since the seed is always 0. A part's mask is all the masks of the
    factors of its name; a part that no factor has scores 0.

    Parameters
    ----------
    network : Network
    root : path
        As for `deepff.evaluation.datasets.load_pascal_part`.
    mappings : sequence of path
        Files such as ``cow.yaml``, named by the class, with lines such as ``0: head``
        (`deepff.regions.part_names.read_parts`); ``cow-pca.yaml`` and ``cow-kmeans.yaml`` are for
        the factors of PCA and k-means.
    overlays : path, optional
        Write the pictures that one needs to make those files here.
    classes : sequence of str
    crf : bool
        Whether there is a row for DFF-CRF.
    report : callable
        Told of each class that is done or failed.

    Raises
    ------
    InputError
        There is neither a mapping nor a folder for pictures, a file's name fits no class, or no
        class could be evaluated.
    """
    if not mappings and overlays is None:
        raise InputError(
            "table 3 needs to know which factor is which part: write the pictures with "
            "--write-overlays FOLDER, then give cow.yaml and horse.yaml with --mapping"
        )
    files = _mapping_files(mappings, classes)
    failures: dict[str, str] = {}
    scores = {
        name: attempt(
            name,
            partial(_evaluate, network, root, name, files, overlays, crf),
            failures,
            report,
        )
        for name in classes
    }
    require_success(scores, failures)
    columns = [f"{name} {part}" for name in classes for part in TABLE3_PARTS[name]]
    columns.append("mean")
    rows = [_row(method, scores) for method in _METHODS if crf or method != DFF_CRF]
    published, published_notes = published_rows("table3", columns)
    n_images = {name: score.n_images for name, score in scores.items() if score is not None}
    counts = ", ".join(f"{name} {count}" for name, count in n_images.items())
    notes = [
        "Set-wide IoU of a part with the masks of the factors that a person named it; a part that "
        "no factor was given scores 0, – where a class has no mapping file",
        f"Images: {counts}",
        *failure_notes(failures),
        *published_notes,
    ]
    return Table(
        "Table 3: PASCAL-Part, cow and horse, k = 3 (IoU)",
        columns,
        [*rows, *published],
        network.describe(sum(n_images.values())),
        notes,
    )


def part_masks(masks: Tensor, mapping: Mapping[int, str], part_names: Sequence[str]) -> Tensor:
    """Masks of named parts: a pixel is on where a factor of that name is.

    Parameters
    ----------
    masks : bool Tensor, (k, H, W)
    mapping : mapping
        Factor number to part name; factors that are not in it are background.
    part_names : sequence of p strings

    Returns
    -------
    bool Tensor, (p, H, W)
    """
    nothing = torch.zeros_like(masks[:1])
    return torch.stack(
        [
            torch.cat([nothing, *(masks[f : f + 1] for f in mapping if mapping[f] == name)]).any(0)
            for name in part_names
        ]
    )


def write_overlays(features: Features, coefficients: Tensor, folder: Path) -> list[Path]:
    """Pictures of five images spread over the set: the photo, then each factor painted over it."""
    from PIL import Image, ImageDraw

    from deepff.images.painting import factor_colors, overlay

    images = features.activations.images
    maps = HeatMaps.of_images(coefficients, images)
    colors = factor_colors(maps.n_factors)
    paths = []
    for index in np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).round().astype(int)):
        photo = Image.fromarray(images[index].read())
        photo.thumbnail((_PANEL_SIDE, _PANEL_SIDE))
        pixels = np.asarray(photo)
        values = maps.normalized(int(index), shape=pixels.shape[:2])
        panels = [pixels]
        panels += [
            overlay(pixels, values[f : f + 1], colors[f : f + 1]) for f in range(maps.n_factors)
        ]
        picture = Image.new("RGB", (len(panels) * photo.width, LABEL_HEIGHT + photo.height))
        picture.paste(Image.fromarray(np.concatenate(panels, axis=1)), (0, LABEL_HEIGHT))
        draw = ImageDraw.Draw(picture)
        for factor in range(maps.n_factors):
            draw.text(((factor + 1) * photo.width + 6, 4), f"factor {factor}", "white")
        path = folder / f"{index:04d}.jpg"
        with atomic_path(path) as temporary:
            picture.save(temporary, quality=90)
        paths.append(path)
    return paths


def _mapping_files(mappings: Sequence[Path], classes: Sequence[str]) -> dict[str, Path]:
    """Mapping files by their stem, which names class and method."""
    known = [name + suffix for name in classes for suffix in MAPPING_SUFFIXES.values()]
    for path in mappings:
        if path.stem not in known:
            raise InputError(
                f"a mapping file is named by its class and method: {path.name} should be "
                f"{' or '.join(f'{stem}.yaml' for stem in known)}"
            )
    return {path.stem: path for path in mappings}


def _evaluate(
    network: Network,
    root: str | Path,
    class_name: str,
    files: Mapping[str, Path],
    overlays: Path | None,
    crf: bool,
) -> NamedPartScores:
    part_names = tuple(TABLE3_PARTS[class_name])
    mappings = {
        method: _read_mapping(files[class_name + suffix], part_names)
        for method, suffix in MAPPING_SUFFIXES.items()
        if class_name + suffix in files
    }
    (truth,) = load_pascal_part(root, {class_name: TABLE3_PARTS[class_name]})
    features = collect(truth, network)
    coefficients = factor_coefficients(features.activations, N_FACTORS)
    if overlays is not None:
        for variant, H in coefficients.items():
            stem = class_name + MAPPING_SUFFIXES[variant.method]
            with output_folder(overlays / stem, REPLACE_OWN) as folder:
                write_overlays(features, H, folder)
    named = {variant: H for variant, H in coefficients.items() if variant.method in mappings}
    if not named:
        return NamedPartScores(len(features), {})
    mappings[DFF_CRF] = mappings.get(DFF, {})
    masks_of_images = (
        {
            variant: part_masks(own, mappings[variant.method], part_names)
            for variant, own in found.items()
        }
        for found in image_masks(features, named, crf)
    )
    counts = count_by_variant(masks_of_images, features)
    # mask i is of part i, whose label is i + 1
    return NamedPartScores(
        len(features),
        {variant.method: iou(own).diagonal(1).tolist() for variant, own in counts.items()},
    )


def _read_mapping(path: Path, part_names: Sequence[str]) -> dict[int, str]:
    mapping = read_parts(path, N_FACTORS)
    for factor, name in mapping.items():
        if name not in part_names:
            raise InputError(
                f"{path} names factor {factor} “{name}”; the parts are: {', '.join(part_names)}"
            )
    return mapping


def _row(method: str, scores: Mapping[str, NamedPartScores | None]) -> Row:
    values: list[float | None] = []
    for class_name, score in scores.items():
        found = None if score is None else score.ious.get(method)
        values += found or [None] * len(TABLE3_PARTS[class_name])
    return Row(method, [*values, mean_of_known(values)])
