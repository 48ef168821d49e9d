"""COCO JSON: masks as run lengths or polygons, and boxes; the run lengths also in Parquet."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from deepff.errors import InputError
from deepff.export.instances import AnnotatedImage, Instance
from deepff.export.polygons import enclosed_area, instance_polygons
from deepff.options import ExportOptions, Photographs
from deepff.runtime.files import atomic_path, atomic_text

# An instance's mask, box and area, from it and its image's size.
Masks = Callable[[Instance, tuple[int, int]], dict[str, Any]]

_WHOLE = "default"
_IMAGES = 1024  # whose rows of Parquet are in memory


def write_coco(
    images: Iterable[AnnotatedImage],
    names: Sequence[str],
    folder: Path,
    settings: ExportOptions,
    polygons: bool = False,
) -> None:
    """Write ``annotations/instances_<subset>.json``, and the photographs into ``images/``. Without
    a split the subset is "default", as CVAT and Datumaro call it. Simplified ``polygons`` have
    boxes and areas of their own."""
    masks = partial(_polygons, settings.simplify) if polygons else _run_lengths
    files: dict[str, Callable[..., None]] = {}
    with ExitStack() as stack:

        def file_of(subset: str) -> Callable[..., None]:
            if subset not in files:
                path = folder / "annotations" / f"instances_{subset}.json"
                files[subset] = stack.enter_context(_coco_file(path, names, masks))
            return files[subset]

        for image in images:
            name = image.write_photo(folder, "images", settings.images or Photographs.COPY)
            file_of(image.subset if settings.split else _WHOLE)(image, name)
        if not files:
            file_of(_WHOLE)


write_coco_polygons = partial(write_coco, polygons=True)


@contextmanager
def _coco_file(path: Path, names: Sequence[str], masks: Masks) -> Iterator[Callable[..., None]]:
    """Yield what adds an image, under its file's name, to a COCO file."""
    entries: list[dict[str, Any]] = []
    n_annotations = 0
    with atomic_text(path) as file:
        categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
        head = {"info": {"description": "deepff"}, "licenses": [], "categories": categories}
        file.write(f'{_json(head)[:-1]}, "annotations": [')

        def add(image: AnnotatedImage, name: str) -> None:
            nonlocal n_annotations
            height, width = image.size
            image_id = len(entries) + 1
            entries.append({"id": image_id, "file_name": name, "width": width, "height": height})
            for instance in image.instances:
                n_annotations += 1
                annotation = {
                    "id": n_annotations,
                    "image_id": image_id,
                    "category_id": instance.region + 1,
                    **masks(instance, image.size),
                    "iscrowd": 0,  # also with holes or pieces: evaluation ignores crowds
                }
                if instance.score is not None:
                    annotation["score"] = instance.score
                file.write(f"{',' if n_annotations > 1 else ''}\n{_json(annotation)}")

        yield add
        file.write(f'\n], "images": {_json(entries)}}}\n')


def write_parquet(
    images: Iterable[AnnotatedImage], names: Sequence[str], folder: Path, settings: ExportOptions
) -> None:
    """Write ``instances.parquet``: a row per instance, and one for an image without any."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise InputError("Parquet needs pyarrow: pip install 'deepff[parquet]'") from error
    text, number, numbers = pa.string(), pa.int32(), pa.list_(pa.int32())
    of_image = {"image": text, "height": number, "width": number, "subset": text}
    mask = {"segmentation": pa.struct({"size": numbers, "counts": text}), "area": number}
    of_instance = {"category": text, "score": pa.float64(), **mask, "bbox": numbers}
    schema = pa.schema(of_image | of_instance, {"categories": _json(list(names))})

    def rows(image: AnnotatedImage) -> Iterator[dict[str, Any]]:
        subset = image.subset if settings.split else None
        about = dict(zip(of_image, (image.name, *image.size, subset), strict=True))
        for instance in image.instances:
            named = {"category": names[instance.region], "score": instance.score}
            yield about | named | _run_lengths(instance, image.size)
        if not image.instances:
            yield about

    each = iter(images)
    with (
        atomic_path(folder / "instances.parquet") as temporary,
        ParquetWriter(temporary, schema) as writer,
    ):
        while some := [row for image in islice(each, _IMAGES) for row in rows(image)]:
            writer.write_table(pa.Table.from_pylist(some, schema))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _polygons(simplify: float, instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
    polygons = instance_polygons(instance, simplify)
    corners = np.concatenate(polygons)
    low, high = corners.min(0), corners.max(0)
    return {
        "segmentation": [polygon.ravel().tolist() for polygon in polygons],
        "area": sum(enclosed_area(polygon) for polygon in polygons),
        "bbox": [*low.tolist(), *(high - low).tolist()],
    }


def _run_lengths(instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
    from pycocotools import mask as api

    encoded = api.encode(np.asfortranarray(instance.full_mask(size), np.uint8))
    x_min, y_min, x_max, y_max = instance.box
    return {
        "segmentation": {"size": list(size), "counts": encoded["counts"].decode()},
        "area": instance.area,
        "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
    }
