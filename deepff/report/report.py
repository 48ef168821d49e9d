"""The HTML report of a result, with the pictures it shows, and galleries of regions."""

import json
import math
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import compress

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from torch import Tensor
from torch.nn import functional

from deepff.discovery.choose_k import AGREED
from deepff.discovery.contrast import separation_warning
from deepff.images.image_files import output_names
from deepff.images.image_set import warn_unreadable
from deepff.images.painting import factor_colors, hex_colors, overlay
from deepff.meaning.similarity import Comparison
from deepff.options import METHODS_IN_WORDS
from deepff.pictures.crops import Crop, Crops, save_jpeg, strongest_crops, write_crops
from deepff.pictures.figures import (
    captions,
    compose,
    photo_shape,
    read_photo,
    region_picture,
    spread,
)
from deepff.pictures.tree_drawing import agreement_svg, colors_over_k, tree_svg
from deepff.regions.components import Box
from deepff.regions.part_names import factor_names, told_apart
from deepff.regions.regions import image_scores
from deepff.result import ClassResults, Result
from deepff.results.factorization import Factorization, tree
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.files import atomic_path, read_json, write_text
from deepff.runtime.outputs import Rules, output_folder, own_file
from deepff.runtime.progress import track

PAGE = "report.html"
GALLERIES = "regions"
_GALLERY_FORM = {"title": str, "description": str, "regions": [str, ...]}


def page_templates(package: str) -> Environment:
    """The templates of a package: values are escaped, and an unknown name is an error."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_PAGES = page_templates("deepff.report")
_UNREADABLE = "thumbnails/unreadable.json"
STRIP_GAP = 4
# Map values embedded in the page, one byte each before compression; above it grids are coarsened.
MAX_EMBEDDED_VALUES = 6_000_000
_N_CLASSES = 3
# The share of a set's activations explained at k = 1; below it, images have little in common.
_LITTLE = 0.2


def write_report(
    result: Result, folder: str | Path, *, progress: bool = False, overlays: bool = False
) -> None:
    """Write ``report.html``, which requests nothing from a network, ``figure.png``, ``thumbnails/``
    and ``crops/`` into a folder. With `overlays`, ``overlays/`` has a strip per image and k."""
    folder = Path(folder)
    files = output_names(result.names)
    in_figure = spread(len(result.names))
    colors = colors_over_k(result.factorizations)

    def write_pictures(i: int) -> tuple[np.ndarray | None, str | None]:
        photo, reason = read_photo(result.images[i])
        save_jpeg(Image.fromarray(photo), folder / _thumbnail(i))
        for k, factorization in result.factorizations.items() if overlays else ():
            maps = factorization.heatmaps.normalized(i, photo.shape[:2])
            picture = strip(photo, maps, colors[k])
            save_jpeg(Image.fromarray(picture), folder / "overlays" / f"k{k}" / f"{files[i]}.jpg")
        return photo if i in in_figure else None, reason

    photos: list[np.ndarray] = []
    unreadable: dict[int, str] = {}

    def write_figure() -> None:
        with atomic_path(folder / "figure.png") as path:
            picture = compose(result.factorizations, in_figure, photos, colors)
            picture.save(path, compress_level=1)

    with (
        track("pictures", len(files), enabled=progress) as advance,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for i, (photo, reason) in enumerate(pool.map(write_pictures, range(len(files)))):
            if photo is not None:
                photos.append(photo)
            if reason is not None:
                unreadable[i] = reason
            advance(1)

        figure = pool.submit(write_figure)
        crops = strongest_crops(result)
        write_crops(result, folder, crops)
        figure.result()
    write_report_page(result, folder, unreadable, crops)
    unread = {result.names[i]: reason for i, reason in unreadable.items()}
    warn_unreadable(unread, "shown gray in the report")


def write_report_page(
    result: Result,
    folder: str | Path,
    unreadable: Mapping[int, str] | None = None,
    crops: Crops | None = None,
) -> None:
    """Write ``report.html`` alone, with the pictures that :func:`write_report` wrote, and
    galleries."""
    notes = Path(folder) / _UNREADABLE
    if not notes.parent.exists():
        return  # of a result that was saved without its report
    if unreadable is not None:
        write_text(notes, json.dumps({str(i): reason for i, reason in unreadable.items()}))
    elif notes.exists():
        unreadable = {int(i): reason for i, reason in read_json(notes, {...: str}).items()}
    crops = strongest_crops(result) if crops is None else crops
    page = _page(result, unreadable or {}, crops, Path(folder))
    with own_file(Path(folder) / PAGE) as path:
        # The command may hold bytes of a file's name that are not valid Unicode.
        path.write_bytes(page.encode("utf-8", "replace"))


def strip(photo: np.ndarray, maps: Tensor, colors: np.ndarray) -> np.ndarray:
    """One picture: photo | all factors | factor 0 | … | factor k − 1, `STRIP_GAP` pixels apart,
    from a photo (H, W, 3), normalized heat maps (k, H, W) and colors (k, 3)."""
    alone = [overlay(photo, maps[j : j + 1], colors[j : j + 1]) for j in range(len(maps))]
    gap = np.full((len(photo), STRIP_GAP, 3), 255, np.uint8)
    panels = [overlay(photo, maps, colors), *alone]
    return np.hstack([photo, *(part for panel in panels for part in (gap, panel))])


def _thumbnail(i: int) -> str:
    return f"thumbnails/{i:05d}.jpg"


def _page(result: Result, unreadable: Mapping[int, str], crops: Crops, folder: Path) -> str:
    shown = galleries(folder)
    slots = [slot for gallery in shown for slot in gallery["places"]]
    region_colors = factor_colors(1 + max(slots, default=0))
    rgb = colors_over_k(result.factorizations)
    colors = {k: hex_colors(values) for k, values in rgb.items()}
    data = _embedded(result, colors, folder)
    ks = list(result.factorizations)
    n_images = range(len(result.images))
    is_scored = result.factorization().scores is not None
    by_score = sorted(n_images, key=lambda i: -(data["images"][i]["score"] or 0))
    return _PAGES.get_template("report.html").render(
        result=result,
        region_colors=hex_colors(region_colors),
        images=data["images"],
        is_scored=is_scored,
        order=by_score,
        unreadable=unreadable,
        sections=[_section(result, k, colors[k], crops[k], folder) for k in result.factorizations],
        overlays=(folder / "overlays").is_dir(),
        skipped=[(file.name, file.reason) for file in result.skipped]
        + [(result.names[i], f"{why} (used, but shown gray)") for i, why in unreadable.items()],
        galleries=shown,
        agreement=result.agreements
        and agreement_svg(result.agreements, result.n_components, AGREED),
        tree=tree_svg(tree(result.factorizations), ks, rgb) if len(ks) > 1 else None,
        separation_warning=result.separation is not None
        and separation_warning(result.separation, result.sources[-1].by_sign),
        methods_in_words=METHODS_IN_WORDS,
        signed=any(f.heatmaps.signed for f in result.factorizations.values()),
        data=data,
    )


def classes_page(results: ClassResults, folders: Sequence[str]) -> str:
    """The page that shows the result of each class, which is in a folder below it, and links it."""
    every = zip(results.items(), folders, strict=True)
    rows = [(x, quote(path), each, told_apart(each.factor_names)) for (x, each), path in every]
    return _PAGES.get_template("classes.html").render(rows=rows)


def comparison_page(comparison: Comparison, picture: str) -> str:
    """The page of two results' pairs of factors, with the picture of that name next to it."""
    return _PAGES.get_template("compared.html").render(comparison=comparison, picture=picture)


def _section(
    result: Result, k: int, colors: Sequence[str], crops: Sequence[Sequence[Crop]], folder: Path
) -> dict[str, Any]:
    """The facts of one k, for the page, with crops whose pictures the folder has."""
    factorization = result.factorizations[k]
    error = factorization.relative_error
    explained = None if math.isnan(error) else max(0.0, 1 - error**2)
    classes = factorization.classes
    names = [None] * k if classes is None else classes.names
    best = [[]] * k if classes is None else classes.best(_N_CLASSES)
    likeness = [[]] * k if classes is None else classes.nearest_words(_N_CLASSES)
    called = told_apart(names)
    importance = result.importances.get(k)
    rows = [] if importance is None else importance.rows()
    shares = factorization.energy_shares.tolist()
    return {
        "k": k,
        "relative_error": None if math.isnan(error) else error,
        "explained": explained,
        "has_little_in_common": k == 1 and explained is not None and explained < _LITTLE,
        "by_words": any(likeness),
        "largest_fall": max((abs(row["fall"]) for row in rows), default=0) or 1,
        "factors": [
            {
                "name": name,
                "color": colors[j],
                "share": shares[j],
                "called": called[j],
                "is_likeliest": not best[j] or names[j] in (None, best[j][0][0]),
                "classes": best[j],
                "likeness": likeness[j],
                "importance": [row for row in rows if row["factor"] == j],
                "crops": [crop for crop in crops[j] if (folder / crop.file).is_file()],
            }
            for j, name in enumerate(factor_names(k))
        ],
    }


def _embedded(result: Result, colors: Mapping[int, list[str]], folder: Path) -> dict[str, Any]:
    """The data that the page's script draws."""
    files = output_names(result.names)
    is_scored = result.factorization().scores is not None
    scores = image_scores(result).amax(1).tolist() if is_scored else [None] * len(files)
    shapes = [result.heatmaps.covering(i).shape[1:] for i in range(len(result.images))]
    n_cells = sum(height * width for height, width in shapes)
    scale = min(1.0, (MAX_EMBEDDED_VALUES / (n_cells * sum(result.factorizations))) ** 0.5)
    grids = [(max(1, round(scale * h)), max(1, round(scale * w))) for h, w in shapes]
    return {
        "images": [
            {
                "name": result.names[i],
                "thumbnail": _thumbnail(i),
                "original": None if (path := result.paths[i]) is None else path.absolute().as_uri(),
                "strip": quote(os.fsencode(files[i])),
                "size": result.image_sizes[i],
                "shape": photo_shape(result.image_sizes[i]),
                "grid": grid,
                "score": scores[i],
            }
            for i, grid in enumerate(grids)
        ],
        "factorizations": {
            str(k): {
                "names": captions(factorization),
                "colors": colors[k],
                "overlays": (folder / "overlays" / f"k{k}").is_dir(),
                "gram": _gram(factorization),
                **_embedded_maps(factorization.heatmaps, grids),
            }
            for k, factorization in result.factorizations.items()
        },
    }


def _gram(factorization: Factorization) -> list[list[float]]:
    """W Wᵀ for relative coefficients, from which the page computes the similarity of cells."""
    components = factorization.components
    W = components * factorization.heatmaps.scale.to(components)[:, None]
    products = (W @ W.T).cpu().double()
    return (products / products.abs().max().clamp_min(1e-300)).numpy().round(6).tolist()


def _embedded_maps(heatmaps: HeatMaps, grids: list[tuple[int, int]]) -> dict[str, Any]:
    """All maps of one factorization, a byte a value. Each is divided by its own peak, so that
    scaling per image keeps all levels; ``peaks`` (n, k) are relative to the factor's largest over
    the set."""
    levels, dtype = (127, np.int8) if heatmaps.signed else (255, np.uint8)
    values, peaks = [], []
    for i, grid in enumerate(grids):
        maps = heatmaps.normalized(i)
        if maps.shape[1:] != grid:
            maps = functional.interpolate(maps[None], grid, mode="bilinear", antialias=True)[0]
        array = maps.cpu().numpy()
        peak = np.abs(array).max((1, 2), keepdims=True)
        unit = array / np.where(peak > 0, peak, 1)
        values.append((levels * unit).round().astype(dtype).tobytes())
        peaks.append(peak.ravel().astype(float).round(4).tolist())
    return {
        "signed": heatmaps.signed,
        "peaks": peaks,
        "maps": b64encode(compress(b"".join(values))).decode("ascii"),
    }


@contextmanager
def region_gallery(
    folder: str | Path,
    name: str,
    description: str,
    regions: Sequence[str],
    n_panels: int = 1,
    color_slots: Sequence[int] | None = None,
) -> Iterator[Callable[..., None]]:
    """Pictures of regions for the report: ``regions/<name>/NNNNN.jpg`` and ``<name>.json``. Yields
    ``draw(result, index, panels, boxes=())``. One of the same name stays until the block ends.
    `description` says how the regions were made."""
    slots = list(range(len(regions)) if color_slots is None else color_slots)
    content = {
        "title": name,
        "description": description,
        "regions": list(regions),
        "n_panels": n_panels,
        "places": slots,
    }
    unread: dict[str, str] = {}
    # These pictures belong to deepff, as the report does: changed ones are not kept.
    with output_folder(Path(folder) / GALLERIES, Rules(overwrite=True)) as temporary:

        def draw(
            result: Result,
            index: int,
            panels: Sequence[np.ndarray],
            boxes: Iterable[tuple[int, Box, float | None]] = (),
        ) -> None:
            """Draw an image's regions, a label map (H, W) per panel, and boxes with scores."""
            photo, reason = read_photo(result.images[index])
            if reason is not None:
                unread[result.names[index]] = reason
            numbers = np.array([0, *(slot + 1 for slot in slots)], panels[0].dtype)
            colored = [(slots[region], box, score) for region, box, score in boxes]
            pictures = [region_picture(photo, numbers[labels], colored) for labels in panels]
            picture = Image.fromarray(np.concatenate(pictures, axis=1))
            save_jpeg(picture, temporary / name / f"{index:05d}.jpg")

        yield draw
        write_text(temporary / f"{name}.json", json.dumps(content))
    warn_unreadable(unread, "shown gray in the report")


def galleries(folder: Path) -> list[dict[str, Any]]:
    """The contents and folders of the galleries in a result's folder, sorted by name."""
    return [
        {
            "n_panels": 1,
            "places": list(range(len(content["regions"]))),
            **content,
            # Images that were added to the result since have none.
            "n_images": len(list(path.with_suffix("").glob("*.jpg"))),
            "folder": f"{GALLERIES}/{path.stem}",
        }
        for path in sorted((folder / GALLERIES).glob("*.json"))
        for content in [read_json(path, _GALLERY_FORM)]
    ]
