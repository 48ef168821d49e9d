"""Pascal VOC 2007 to 2012 (Everingham et al., IJCV 2010): boxes, and some segmentations; and
PASCAL-Part, part masks for the images of VOC 2010 (Chen et al., CVPR 2014).
"""

import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import (
    IGNORED,
    UNNAMED,
    AnnotatedBox,
    GroundTruthImage,
    GroundTruthSet,
    read_label_image,
    table_of_names,
    with_parts,
)
from deepff.images.image_files import ImageFile
from deepff.options import VocFilter, chosen

VOC_CLASSES: tuple[str, ...] = tuple(table_of_names("voc_classes"))

# What loadmat raises for files that are truncated, of MATLAB 7.3, or not MATLAB's, and what reading
# an array as a struct raises.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, OSError, NotImplementedError, zlib.error)

# The data set's part names, by the part that they are merged into; by class.
PartNames = Mapping[str, Sequence[str]]
TABLE3_PARTS: dict[str, PartNames] = table_of_names("table3")
TABLE4_PARTS: dict[str, PartNames] = table_of_names("table4")


def load_voc(
    root: str | Path,
    *,
    year: int | None = None,
    classes: Sequence[str] | None = None,
    filter: str = VocFilter.DIFFICULT_OR_TRUNCATED,
) -> list[GroundTruthSet]:
    """Load the trainval images of Pascal VOC, one set per class, whose name is also its one part.
    ``root`` is the folder of a year or holds it; ``year`` is needed where it holds several. An
    image needs an instance that is not difficult, nor truncated by the default filter. VOC's box
    (1, 1, 1, 1) is (0, 0, 1, 1) here."""
    chosen(VocFilter, filter, "filter")
    classes = check_classes(VOC_CLASSES if classes is None else classes, VOC_CLASSES)
    folder = find_voc(root, year)
    return [_load_class(folder, class_name, filter) for class_name in classes]


def check_classes(classes: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return `classes`, or raise InputError for one that is not among `known`."""
    for class_name in classes:
        if class_name not in known:
            raise InputError(f"no class “{class_name}”; the classes are: {', '.join(known)}")
    return classes


def find_voc(root: str | Path, year: int | None = None) -> Path:
    """The folder of one year, such as `VOCdevkit/VOC2007`, at or under `root`."""
    root = Path(root)
    pattern = f"VOC{year or '20[0-9][0-9]'}"
    for parent in (root, root / "VOCdevkit"):
        years = sorted(path for path in parent.glob(pattern) if path.is_dir())
        if len(years) > 1:
            names = ", ".join(path.name for path in years)
            raise InputError(f"{parent} holds several years ({names}); name one of their folders")
        if years:
            return years[0]
    if (root / "JPEGImages").is_dir() and (year is None or root.resolve().match(pattern)):
        return root
    wanted = f"VOC{year}" if year else "VOC2007 (or another year)"
    raise InputError(f"there is no folder {wanted} with JPEGImages/ in {root}")


def image_ids(folder: Path, class_name: str) -> list[str]:
    """Ids of trainval's images that may show a class, in the file's order: not marked by -1 in
    `ImageSets/Main/<class>_trainval.txt`, or where that is missing all of `trainval.txt`."""
    sets = folder / "ImageSets" / "Main"
    by_class, of_all = sets / f"{class_name}_trainval.txt", sets / "trainval.txt"
    if by_class.is_file():
        lines = [line.split() for line in by_class.read_text().splitlines() if line.strip()]
        if any(len(line) != 2 for line in lines):
            raise InputError(f"{by_class} should have an image and 1, 0 or -1 in each line")
        return [image_id for image_id, flag in lines if flag != "-1"]
    if of_all.is_file():
        return of_all.read_text().split()
    raise InputError(f"no image set of {class_name}: neither {by_class} nor {of_all.name} there")


def image_file(folder: Path, image_id: str) -> ImageFile:
    """The image with an id, or InputError if it is not in `JPEGImages`."""
    path = folder / "JPEGImages" / f"{image_id}.jpg"
    if not path.is_file():
        raise InputError(f"the image {path} is missing, but an image set lists it")
    return ImageFile(path=path.absolute(), name=path.name)


def read_boxes(path: Path) -> tuple[AnnotatedBox, ...]:
    """Boxes of a VOC annotation file, in pixel-edge coordinates."""
    try:
        # Only children of the root are objects: a person's head and hands are nested <part>s.
        return tuple(_box(element) for element in ET.parse(path).getroot().findall("object"))
    except FileNotFoundError as error:
        raise InputError(f"the annotation {path} is missing") from error
    except (ET.ParseError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a Pascal VOC annotation") from error


def _box(element: ET.Element) -> AnnotatedBox:
    x_min, y_min, x_max, y_max = (
        float(element.findtext(f"bndbox/{side}", default="missing"))
        for side in ("xmin", "ymin", "xmax", "ymax")
    )
    return AnnotatedBox(
        class_name=element.findtext("name", default="").strip(),
        coordinates=(x_min - 1, y_min - 1, x_max, y_max),
        difficult=element.findtext("difficult", default="0").strip() == "1",
        truncated=element.findtext("truncated", default="0").strip() == "1",
    )


def _load_class(folder: Path, class_name: str, filter: str) -> GroundTruthSet:
    images = []
    for image_id in image_ids(folder, class_name):
        boxes = read_boxes(folder / "Annotations" / f"{image_id}.xml")
        if not any(
            box.class_name == class_name
            and not box.difficult
            and not (box.truncated and filter == VocFilter.DIFFICULT_OR_TRUNCATED)
            for box in boxes
        ):
            continue
        segmentation = folder / "SegmentationClass" / f"{image_id}.png"
        read_labels = partial(_read_class, segmentation, VOC_CLASSES.index(class_name) + 1)
        images.append(
            GroundTruthImage(
                image_file(folder, image_id), boxes, read_labels if segmentation.is_file() else None
            )
        )
    return GroundTruthSet(name=class_name, part_names=(class_name,), images=tuple(images))


def _read_class(path: Path, value: int) -> np.ndarray:
    stored = read_label_image(path)
    labels = (stored == value).astype(np.uint8)
    labels[stored == IGNORED] = IGNORED
    return labels


def load_pascal_part(
    root: str | Path, parts: Mapping[str, PartNames] = TABLE4_PARTS, *, others: Sequence[str] = ()
) -> list[GroundTruthSet]:
    """Load PASCAL-Part, a set per class, without images of a difficult or truncated one. ``parts``
    has for each class the data set's names by part; `"wheel"` stands for `wheel_1`, `wheel_2`, …
    Where parts overlap, each has all its pixels. Objects of the classes ``others`` have labels
    where no object of the set's class is."""
    root = Path(root)
    check_classes(list(parts), list(TABLE4_PARTS))
    folder = find_voc(root, 2010)
    candidates = [parent / "Annotations_Part" for parent in (folder, root)]
    annotations = next((path for path in candidates if path.is_dir()), None)
    if annotations is None:
        raise InputError(
            f"PASCAL-Part's masks are missing: neither {candidates[0]} nor {candidates[1]}"
        )
    return [_load_parts(folder, annotations, *of_class, others) for of_class in parts.items()]


def _load_parts(
    folder: Path, annotations: Path, class_name: str, parts: PartNames, others: Sequence[str]
) -> GroundTruthSet:
    others = tuple(name for name in others if name != class_name)
    label_of = {
        name: label for label, names in enumerate(parts.values(), start=1) for name in names
    }
    label_of_other = {name: label for label, name in enumerate(others, start=len(parts) + 1)}
    images = []
    for image_id in image_ids(folder, class_name):
        boxes = read_boxes(folder / "Annotations" / f"{image_id}.xml")
        marked = (
            box.class_name == class_name and (box.difficult or box.truncated) for box in boxes
        )
        if any(marked):
            continue
        path = annotations / f"{image_id}.mat"
        if not path.is_file():
            raise InputError(
                f"part masks {path} are missing, but {class_name}'s image set lists them"
            )
        read_labels = partial(_read_parts, path, class_name, label_of, label_of_other)
        images.append(GroundTruthImage(image_file(folder, image_id), read_labels=read_labels))
    return GroundTruthSet(class_name, tuple(parts), tuple(images), others=others)


def _read_parts(
    path: Path, class_name: str, label_of: Mapping[str, int], label_of_other: Mapping[str, int]
) -> np.ndarray:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        # Without squeeze_me every field has MATLAB's two dimensions, and a mask of one row stays a
        # mask.
        annotation = loadmat(path)["anno"][0, 0]
        return _label_map(annotation["objects"].ravel(), class_name, label_of, label_of_other)
    except (*_MALFORMED, MatReadError) as error:
        raise InputError(f"{path} is not a PASCAL-Part annotation") from error


def _label_map(
    objects: np.ndarray,
    class_name: str,
    label_of: Mapping[str, int],
    label_of_other: Mapping[str, int],
) -> np.ndarray:
    labels = np.zeros(objects[0]["mask"].shape, np.uint8)
    parts: dict[int, np.ndarray] = {}
    for instance in objects:
        if (other := _text(instance["class"])) in label_of_other:
            labels[instance["mask"] > 0] = label_of_other[other]
    for instance in objects:
        if _text(instance["class"]) != class_name:
            continue
        labels[instance["mask"] > 0] = UNNAMED
        for part in instance["parts"].ravel():
            label = label_of.get(re.sub(r"_\d+$", "", _text(part["part_name"])))
            if label is not None:
                mask = part["mask"] > 0
                parts[label] = parts.get(label, np.False_) | mask
    return with_parts(labels, parts)


def _text(field: Any) -> str:
    return str(field[0])
