"""Labels that exist, as masks that images keep: COCO, YOLO, LabelMe, label maps as PNG."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import yaml
from PIL import Image

from deepff.app.edits import set_masks
from deepff.app.kept_masks import NamedMask, keep
from deepff.app.label_file import LabelStore
from deepff.app.labels import ACCEPTED, ImageLabel
from deepff.errors import InputError, warn_user
from deepff.export.polygons import filled
from deepff.images.image_set import warn_unreadable
from deepff.regions.part_names import RESERVED
from deepff.results.run import Run

Size = tuple[int, int]  # (H, W)
Pieces = Iterator[tuple[str, np.ndarray]]  # classes and their masks, (H, W) bool
# An image's path in its file's words, maybe without a suffix, and what gives pieces for its size.
Labeled = tuple[str, Callable[[Size], Pieces]]
_OUTSIDE = "an outline has no pixel inside of the image"


def import_labels(store: LabelStore, run: Run, path: Path) -> str:
    """Make undecided images keep the masks that a file or folder has for them, as accepted. Returns
    what came of it, for people; what was left out is a warning too."""
    labels, sizes = store.refresh(), {image.name: image.size for image in run.images}
    images, classes = _images_by_end(run.names), {c.casefold(): c for c in labels.all_classes}
    masks, problems, n_decided = {}, {}, 0
    try:
        labeled = [*read_labels(path)]
    except (KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"{path} is damaged ({error!r})") from error
    for file, pieces in labeled:
        name = next((images[end] for end in _ends(file) if end in images), None)
        if name is None:
            problems[file] = "no photograph has this name"
        elif labels.image(name) != ImageLabel():
            n_decided += 1
        else:
            try:
                mask, unused = _mask(pieces(sizes[name]), sizes[name], classes)
                masks[name] = keep(labels, name, mask, mended=True)
                problems |= {f"{of} in {name}": why for of, why in unused.items()}
            except InputError as error:
                problems[name] = str(error)
            except Exception as error:  # what others wrote may be anything
                problems[name] = f"its labels are damaged: {error!r}"
    store.edit(labels.revision, lambda of: set_masks(of, masks, ACCEPTED))
    warn_unreadable(problems, f"left out of {path}")
    by_reason: dict[str, list[str]] = {}
    for of, why in problems.items():
        by_reason.setdefault(why, []).append(of)
    left_out = "".join(
        f"; left out: {of[0]}{f' and {len(of) - 1} more' if of[1:] else ''} ({why})"
        for why, of in by_reason.items()
    )
    decided = f"; {n_decided} had decisions before" if n_decided else ""
    return f"{len(masks)} of {len(sizes)} images have masks from {path}{decided}{left_out}"


def _images_by_end(names: Sequence[str]) -> dict[str, str]:
    """The image that an end of a path, with or without suffix, stands for where only one has it."""
    stems = [(os.path.splitext(name)[0], name) for name in names]
    pairs = {
        (end, name)
        for path, name in [*stems, *zip(names, names, strict=True)]
        for end in _ends(path)
    }
    counts, whole = Counter(end for end, _ in pairs), Counter(stem for stem, _ in stems)
    by_end = {end: name for end, name in pairs if counts[end] == 1}
    alone = {stem: name for stem, name in stems if whole[stem] == 1}
    return by_end | {_ends(end)[0]: name for end, name in (alone | {n: n for n in names}).items()}


def _ends(path: str) -> list[str]:
    """What a path ends with, in the one of Unicode's spellings that files seldom have on a Mac."""
    parts = normalize("NFC", path).replace("\\", "/").split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


def _mask(pieces: Pieces, size: Size, classes: dict[str, str]) -> tuple[NamedMask, dict[str, str]]:
    """One class per pixel, of smaller pieces where they overlap; `classes` spells, and grows. Also
    the classes of pieces that are not used, and why."""
    names: list[str] = []
    values, unused = np.zeros(size, np.uint8), {}
    for name, mask in sorted(pieces, key=lambda piece: -np.count_nonzero(piece[1])):
        if mask.shape != size:
            raise InputError(f"its labels are for {mask.shape[1]} × {mask.shape[0]} pixels")
        name = " ".join(name.split())
        if not mask.any():
            unused[name] = _OUTSIDE
        elif name.casefold() in RESERVED:
            unused[name] = "no class can have this name"
        else:
            name = classes.setdefault(name.casefold(), name)
            names += [] if name in names else [name]
            values[mask] = names.index(name) + 1
    if not names and _OUTSIDE in unused.values():
        raise InputError(_OUTSIDE)
    return NamedMask(values, tuple(names)), unused


def read_labels(path: Path) -> Iterator[Labeled]:
    """What a file or folder says of images; InputError where it is no kind that is known."""
    root, is_file = (path, False) if path.is_dir() else (path.parent, path.suffix != ".yaml")
    files = [path] if is_file else sorted(root.rglob("*"))
    jsons = [file for file in files if file.suffix == ".json"]
    for file in jsons:
        content = _json(file)
        if "annotations" in content:
            return (labeled for file in jsons for labeled in _coco(file))
        if "shapes" in content:
            read = ((file, _json(file)) for file in jsons)
            return (_labelme(root, file, of) for file, of in read if "shapes" in of)
    rows = ((file, _yolo_rows(file)) for file in files if file.suffix == ".txt")
    if names := _yolo_names(root):
        return (
            (_stem(root, file), partial(_yolo, of, names)) for file, of in rows if of is not None
        )
    maps = [file for file in files if file.suffix.lower() == ".png"]
    if maps:
        listed = [folder / "labels.txt" for folder in (root, root.parent)]
        lines = next((file.read_text("utf-8").splitlines() for file in listed if file.exists()), [])
        return ((_stem(root, file), partial(_label_map, file, lines)) for file in maps)
    raise InputError(
        f"{path} has no labels that deepff can read; use JSON of COCO or LabelMe, YOLO labels with "
        "data.yaml, or label maps as PNG with labels.txt"
    )


def _stem(root: Path, file: Path) -> str:
    return file.relative_to(root).with_suffix("").as_posix()


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error})") from error
    return content if isinstance(content, dict) else {}


def _coco(file: Path) -> Iterator[Labeled]:
    from pycocotools.coco import COCO

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        coco = COCO(file)
    if crowds := sum(bool(entry.get("iscrowd")) for entry in coco.anns.values()):
        warn_user(f"{file}: crowds ({crowds}) are pieces of their class as others are")

    def pieces(number: Any, size: Size) -> Pieces:
        for entry in coco.imgToAnns[number]:
            if not entry.get("segmentation"):
                raise InputError("it has boxes but no masks")
            yield coco.cats[entry["category_id"]]["name"], coco.annToMask(entry).astype(bool)

    for number, image in coco.imgs.items():
        yield image["file_name"], partial(pieces, number)


def _labelme(root: Path, file: Path, content: dict[str, Any]) -> Labeled:
    photo = _ends(content["imagePath"])[-1]

    def pieces(size: Size) -> Pieces:
        for shape in content["shapes"]:
            points, kind = np.array(shape["points"], float), shape.get("shape_type", "polygon")
            if kind == "rectangle":
                points = points[[0, 0, 1, 1]]
                points[[1, 3], 0] = points[[3, 1], 0]
            elif kind != "polygon":
                raise InputError(f"a {kind} is not an outline")
            yield shape["label"], filled([points], (content["imageHeight"], content["imageWidth"]))

    return (file.relative_to(root).parent / photo).as_posix(), pieces


def _yolo_names(root: Path) -> dict[int, str]:
    """The classes of a data.yaml in a folder, or up to two above it; none where there is none."""
    for file in (file for above in (root, *root.parents[:2]) for file in above.glob("*.yaml")):
        content = yaml.safe_load(file.read_text("utf-8"))
        if isinstance(content, dict) and (names := content.get("names")):
            return dict(enumerate(names) if isinstance(names, list) else names)
    return {}


def _yolo_rows(file: Path) -> list[list[float]] | None:
    """A class and shares of the sides in each row; None where a text is of something else."""
    try:
        rows = [[*map(float, line.split())] for line in file.read_text("utf-8").splitlines()]
    except ValueError:
        return None
    return [row for row in rows if row] if all(len(row) != 1 for row in rows) else None


def _yolo(rows: list[list[float]], names: Mapping[int, str], size: Size) -> Pieces:
    for number, *shares in rows:
        if len(shares) == 4:
            raise InputError("it has boxes but no outlines")
        yield names[int(number)], filled([np.reshape(shares, (-1, 2)) * size[::-1]], size)


def _label_map(file: Path, names: Sequence[str], size: Size) -> Pieces:
    """Of values without a name, 255 is nothing; without any names, it is the object."""
    with Image.open(file) as image:
        values = np.asarray(image).astype(int)
    if values.ndim != 2:
        raise InputError("its label map has colors instead of class numbers")
    for value in np.unique(values[values > 0]).tolist():
        if value < len(names):
            yield names[value], values == value
        elif not names or value != 255:
            yield "object" if value == 255 else f"class {value}", values == value
