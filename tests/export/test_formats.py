"""Every export format read back, pixel by pixel, by a reader that is not ours where there is one.

COCO is read by pycocotools, VOC by torchvision too, YOLO and LabelMe by supervision too where it is
installed. Polygons are filled by pycocotools' rasterizer, whose convention (pixel edges) is the
exporter's. For CVAT's and Label Studio's run lengths, whose own software is too large to install
for a test, export_readers.py has decoders written from their documentation.
"""

import contextlib
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from export_readers import (
    COCO_FILE,
    NAMES,
    annotate,
    check,
    decode_brush,
    difficult_labels,
    many_labels,
    read_coco,
    write,
)
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy import ndimage
from torchvision.datasets import VOCDetection, VOCSegmentation

import deepff
from deepff.errors import InputError
from deepff.export.formats import FORMATS
from deepff.export.instances import AnnotatedImage, annotated_images, find_instances, found_maps
from deepff.export.labeling_tools import brush_run_lengths
from deepff.export.polygons import instance_polygons
from deepff.images.image_files import find_images


@pytest.mark.parametrize("kind", ["components", "parts"])
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_read_back_is_what_was_exported(tmp_path: Path, format: str, kind: str) -> None:
    labels = difficult_labels()
    write(format, annotate(labels, kind), tmp_path)
    check(format, tmp_path, list(annotate(labels, kind)))


@pytest.mark.parametrize("format", FORMATS)
def test_two_hundred_images_are_read_back(tmp_path: Path, format: str) -> None:
    labels = many_labels()
    write(format, annotate(labels, "components"), tmp_path)
    images = list(annotate(labels, "components"))
    assert sum(len(image.instances) for image in images) > 400
    check(format, tmp_path, images)


def test_a_set_without_instances_or_images_is_whole_files(tmp_path: Path) -> None:
    empty = {"a.jpg": np.zeros((3, 4), np.uint8)}
    for labels in (empty, {}):
        for format in FORMATS:
            folder = tmp_path / f"{format}-{len(labels)}"
            write(format, annotate(labels, "components"), folder)
            check(format, folder, list(annotate(labels, "components")))


def test_a_rotated_photograph_has_its_size_as_seen_upright(tmp_path: Path, data_root: Path) -> None:
    photo = Image.open(next((data_root / "icoseg/images").glob("021*/*.jpg")))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned to the left
    photo.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.jpg", exif=exif)
    result = deepff.discover(find_images(tmp_path), 3, size=224)
    images = list(annotated_images(result, found_maps(result)))
    assert images[0].size == photo.size[::-1]
    assert images[0].instances
    for format in FORMATS:
        write(format, annotated_images(result, found_maps(result)), tmp_path / format)
        check(format, tmp_path / format, images)


@pytest.mark.parametrize("polygons", [False, True])
@pytest.mark.parametrize("kind", ["components", "parts"])
def test_a_coco_file_evaluated_against_itself_is_perfect(
    tmp_path: Path, polygons: bool, kind: str
) -> None:
    labels = difficult_labels()
    write("coco-polygons" if polygons else "coco", annotate(labels, kind), tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(tmp_path / COCO_FILE)
        entries = [{**entry, "score": 1.0} for entry in truth.dataset["annotations"]]
        found = truth.loadRes(entries)
        for measure in ("segm", "bbox"):
            evaluation = COCOeval(truth, found, measure)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            assert evaluation.stats[0] == 1.0
    assert sum(map(len, truth.imgToAnns.values())) == len(entries) > 5


def test_coco_run_lengths_and_polygons_are_the_same_masks(tmp_path: Path) -> None:
    labels = many_labels()
    sizes = {name: values.shape for name, values in labels.items()}
    for format in ("coco", "coco-polygons"):
        write(format, annotate(labels, "parts"), tmp_path / format)
    run_lengths, outlines = (
        read_coco(tmp_path / format, sizes) for format in ("coco", "coco-polygons")
    )
    for name, (_, found) in run_lengths.items():
        for (_, mask), (_, other) in zip(found, outlines[name][1], strict=True):
            assert (mask == other).all()


def test_voc_is_read_by_torchvision(tmp_path: Path) -> None:
    labels = {Path(name).name: values for name, values in difficult_labels().items()}
    folder = tmp_path / "VOCdevkit" / "VOC2007"
    write("voc", annotate(labels, "components"), folder)
    (folder / "JPEGImages").mkdir()
    for name, values in labels.items():
        Image.new("RGB", values.shape[::-1]).save(folder / "JPEGImages" / name)
    detection = VOCDetection(tmp_path, "2007", "trainval")
    segmentation = VOCSegmentation(tmp_path, "2007", "trainval")
    assert len(detection) == len(segmentation) == len(labels)
    for (name, values), (_, target), (_, mask) in zip(
        labels.items(), detection, segmentation, strict=True
    ):
        assert mask.mode == "P"
        assert (np.asarray(mask) == values).all()
        annotation = target["annotation"]
        assert annotation["filename"] == name
        assert [one["name"] for one in annotation.get("object", [])] == [
            NAMES[instance.region] for instance in find_instances(values)
        ]
    last = target["annotation"]
    assert last.get("object", []) == [] and last["segmented"] == "0"
    assert detection[3][1]["annotation"]["object"][0]["bndbox"] == {
        "xmin": "40",
        "ymin": "9",
        "xmax": "40",
        "ymax": "9",
    }


def test_vocs_images_have_vocs_colors(tmp_path: Path) -> None:
    write("voc", annotate(difficult_labels(), "components"), tmp_path)
    palette = Image.open(tmp_path / "SegmentationClass" / "single.png").getpalette()
    colors = np.array(palette).reshape(-1, 3)
    # aeroplane, bicycle, boat, person, tv monitor and the border in the development kit's images
    assert colors[[0, 1, 2, 4, 15, 20, 255]].tolist() == [
        [0, 0, 0],
        [128, 0, 0],
        [0, 128, 0],
        [0, 0, 128],
        [192, 128, 128],
        [0, 64, 128],
        [224, 224, 192],
    ]


def test_voc_refuses_more_instances_than_its_pixels_tell_apart(tmp_path: Path) -> None:
    specks = np.zeros((40, 40), np.uint8)
    specks[::2, ::2] = 1
    with pytest.raises(InputError, match=r"up to 254 instances, not 400 as in a\.jpg"):
        write("voc", annotate({"a.jpg": specks}, "components"), tmp_path)
    write("voc", annotate({"a.jpg": specks}, "parts"), tmp_path)


def test_yolo_refuses_images_that_would_share_their_labels(tmp_path: Path) -> None:
    labels = {name: np.ones((3, 3), np.uint8) for name in ("a.jpg", "a.png", "b.jpg")}
    with pytest.raises(InputError, match=r"a\.png shares that with a\.jpg"):
        write("yolo", annotate(labels, "components"), tmp_path)


def test_names_that_xml_cannot_hold_are_escaped(tmp_path: Path) -> None:
    name = "a\x01\n<&'\".jpg"
    [image] = annotate({name: np.ones((2, 2), np.uint8)}, "components")
    for format in ("voc", "cvat"):
        write(format, [image], tmp_path / format)
    root = ET.parse(tmp_path / "cvat" / "annotations.xml").getroot()
    assert root.find("image").get("name") == "a%01%0A<&'\".jpg"
    [xml] = (tmp_path / "voc" / "Annotations").iterdir()
    assert ET.parse(xml).findtext("filename") == "a%01%0A<&'\".jpg"


def test_a_brush_mask_packs_runs_longer_than_a_length_can_be() -> None:
    mask = np.zeros((300, 301), bool)
    mask[100:290, :] = True
    packed = brush_run_lengths(mask)
    assert max(packed) <= 255
    assert (decode_brush(packed).reshape(300, 301, 4)[..., 0] == 255 * mask).all()


def test_a_brush_mask_by_hand() -> None:
    # 2 pixels, 8 values: the first off, the second on; lengths of 3, 4, 8 or 16 bits
    bits = f"{8:032b}" + "00111" + "0010" + "0011" + "0111" + "1111"
    bits += "1" + "00" + "011" + "00000000" + "1" + "00" + "011" + "11111111"
    bits += "0" * (-len(bits) % 8)
    packed = brush_run_lengths(np.array([[False, True]]))
    assert packed == [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


def test_supervision_reads_yolo_and_labelme(tmp_path: Path) -> None:
    """Supervision takes corners for pixels and fills them too: up to a pixel is added around."""
    supervision = pytest.importorskip("supervision")
    labels = {Path(name).name: values for name, values in difficult_labels().items()}
    images = {image.name: image for image in annotate(labels, "components")}
    for name, image in images.items():
        path = tmp_path / "images" / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", image.size[::-1]).save(path)
    for format in ("yolo", "yolo-seg"):
        write(format, images.values(), tmp_path / format)
    write("labelme", images.values(), tmp_path / "labelme")
    (tmp_path / "labelme" / "labels.txt").unlink()
    folder = str(tmp_path / "images")
    datasets = {
        format: supervision.DetectionDataset.from_yolo(
            folder,
            str(tmp_path / format / "labels"),
            str(tmp_path / format / "data.yaml"),
            force_masks=format == "yolo-seg",
        )
        for format in ("yolo", "yolo-seg")
    }
    datasets["labelme"] = supervision.DetectionDataset.from_labelme(
        folder, str(tmp_path / "labelme")
    )
    for format, dataset in datasets.items():
        assert len(dataset) == len(images)
        assert sorted(dataset.classes) == sorted(NAMES)
        for path, _, found in dataset:
            image = images[Path(path).name]
            assert len(found) == len(image.instances)
            for i, instance in enumerate(image.instances):
                assert dataset.classes[found.class_id[i]] == NAMES[instance.region]
                assert np.abs(found.xyxy[i] - instance.box).max() < 1e-3
                if format != "yolo":
                    mask = instance.full_mask(image.size)
                    assert (mask <= found.mask[i]).all()
                    grown = ndimage.binary_dilation(mask, np.ones((3, 3)))
                    assert (found.mask[i] <= grown).all()


def test_streams_are_written_as_they_come(tmp_path: Path) -> None:
    """What is not in memory cannot be written at the end: one image's masks are held at a time."""
    import gc
    import weakref

    references: list[weakref.ref] = []

    def images() -> Iterator[AnnotatedImage]:
        for image in annotate(many_labels(), "components"):
            gc.collect(0)
            assert sum(reference() is not None for reference in references) <= 1
            references.append(weakref.ref(image))
            yield image

    for format in FORMATS:
        references.clear()
        write(format, images(), tmp_path / format)
        assert len(references) == 200


def test_polygons_of_instances_lie_in_their_images() -> None:
    for image in annotate(difficult_labels(), "parts"):
        for instance in image.instances:
            points = np.concatenate(instance_polygons(instance))
            low, high = points.min(0), points.max(0)
            assert (*low, *high) == instance.box


def test_label_studio_addresses_are_relative_and_quoted(tmp_path: Path) -> None:
    labels = {"ü/a b&c.jpg": np.ones((2, 2), np.uint8)}
    write("label-studio", annotate(labels, "components"), tmp_path)
    [task] = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert task["data"]["image"] == "/data/local-files/?d=%C3%BC/a%20b%26c.jpg"


def test_label_maps_take_tensors_of_any_integer_type() -> None:
    values = torch.tensor([[0, 300]], dtype=torch.int32)
    [instance] = find_instances(values)
    assert instance.region == 299 and instance.box == (1, 0, 2, 1)
