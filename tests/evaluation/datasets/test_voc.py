"""Pascal VOC, and PASCAL-Part on top of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from pascal_part_files import Objects, voc_annotation, write_parts
from PIL import Image

from deepff.errors import InputError
from deepff.evaluation.datasets.pascal import (
    TABLE3_PARTS,
    TABLE4_PARTS,
    VOC_CLASSES,
    load_pascal_part,
    load_voc,
)
from deepff.evaluation.metrics import count_overlaps, coverage, iou

SHAPE = (4, 6)

IMAGES: dict[str, Objects] = {
    "000001": [("cow", 0, 0), ("horse", 0, 1)],
    "000002": [("cow", 1, 0)],
    "000003": [("cow", 0, 1)],
    "000004": [("cow", 1, 0), ("cow", 0, 1)],
    "000005": [("horse", 1, 1), ("horse", 0, 0)],
}


def write_voc(folder: Path) -> Path:
    for name in ("Annotations", "ImageSets/Main", "JPEGImages", "SegmentationClass"):
        (folder / name).mkdir(parents=True)
    for image_id, objects in IMAGES.items():
        Image.new("RGB", SHAPE[::-1]).save(folder / "JPEGImages" / f"{image_id}.jpg")
        (folder / "Annotations" / f"{image_id}.xml").write_text(voc_annotation(objects))
    (folder / "ImageSets/Main/trainval.txt").write_text("\n".join(IMAGES) + "\n")
    return folder


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return write_voc(tmp_path / "VOCdevkit" / "VOC2007")


def ids(root: Path, class_name: str, **options: Any) -> list[str]:
    (images,) = load_voc(root, classes=[class_name], **options)
    assert images.name == class_name
    return [item.image.path.stem for item in images.images]


def test_voc_keeps_images_with_an_instance_neither_difficult_nor_truncated(voc: Path) -> None:
    # 000004 has two cows, each with one of the flags: neither will do.
    assert ids(voc, "cow") == ["000001"]
    assert ids(voc, "horse") == ["000005"]


def test_voc_filter_difficult_keeps_truncated_instances(voc: Path) -> None:
    assert ids(voc, "cow", filter="difficult") == ["000001", "000002", "000004"]
    assert ids(voc, "horse", filter="difficult") == ["000005"]


def test_voc_image_set_of_the_class_limits_the_images(voc: Path) -> None:
    (voc / "ImageSets/Main/cow_trainval.txt").write_text("000001 -1\n000002  1\n000004  0\n")

    assert ids(voc, "cow", filter="difficult") == ["000002", "000004"]


def test_voc_boxes_are_pixel_edges_and_parts_are_not_objects(voc: Path) -> None:
    (voc / "Annotations/000001.xml").write_text(
        voc_annotation([("cow", 0, 0), ("horse", 1, 1)]).replace(
            "<xmin>2</xmin><ymin>1</ymin><xmax>5</xmax><ymax>3</ymax>",
            "<xmin>1</xmin><ymin>1</ymin><xmax>1</xmax><ymax>1</ymax>",
            1,
        )
    )

    (item,) = load_voc(voc, classes=["cow"])[0].images

    assert [box.class_name for box in item.boxes] == ["cow", "horse"]
    assert item.boxes_of("cow") == [(0, 0, 1, 1)]  # the pixel in row 0 and column 0
    assert item.boxes_of("horse") == [(1, 0, 5, 3)]  # columns 1 to 4, rows 0 to 2
    assert [(box.truncated, box.difficult) for box in item.boxes] == [(False, False), (True, True)]


def test_voc_segmentation_is_read_for_the_class_with_its_border_ignored(voc: Path) -> None:
    stored = np.zeros(SHAPE, np.uint8)
    stored[0, :2], stored[1, :3], stored[2] = 10, 13, 255  # 10 is cow, 13 horse
    Image.fromarray(stored).save(voc / "SegmentationClass/000001.png")

    cow, horse = load_voc(voc, classes=["cow", "horse"])
    labels = cow.images[0].labels()

    assert cow.part_names == ("cow",)
    assert np.argwhere(labels == 1).tolist() == [[0, 0], [0, 1]]
    assert np.argwhere(labels == 255)[:, 0].tolist() == [2] * 6
    assert (labels == 0).sum() == 24 - 2 - 6
    assert horse.images[0].read_labels is None


@pytest.mark.parametrize("up", [0, 1, 2])
def test_voc_root_is_the_year_the_devkit_or_its_parent(voc: Path, up: int) -> None:
    root = [voc, voc.parent, voc.parent.parent][up]

    assert ids(root, "cow") == ids(root, "cow", year=2007) == ["000001"]
    with pytest.raises(InputError, match="VOC2012"):
        load_voc(root, year=2012)


def test_voc_years_beside_each_other_must_be_told_apart(voc: Path) -> None:
    write_voc(voc.with_name("VOC2012"))

    with pytest.raises(InputError, match="VOC2007, VOC2012"):
        load_voc(voc.parent)
    assert ids(voc.parent, "cow", year=2012) == ["000001"]


def test_voc_unknown_class_and_filter_name_the_known_ones(voc: Path) -> None:
    with pytest.raises(InputError, match=r"no class “cows”; .*aeroplane, .*tvmonitor"):
        load_voc(voc, classes=["cows"])
    with pytest.raises(InputError, match="difficult-or-truncated, difficult"):
        load_voc(voc, filter="truncated")


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("ImageSets/Main/trainval.txt", r"neither .*cow_trainval\.txt nor trainval\.txt"),
        ("Annotations/000003.xml", r"000003\.xml"),
        ("JPEGImages/000001.jpg", r"000001\.jpg"),
    ],
)
def test_voc_missing_file_is_named(voc: Path, missing: str, named: str) -> None:
    (voc / missing).unlink()

    with pytest.raises(InputError, match=named):
        load_voc(voc, classes=["cow"])


@pytest.mark.parametrize("content", ["", "<annotation><object>", "cow"])
def test_voc_damaged_annotation_is_named(voc: Path, content: str) -> None:
    (voc / "Annotations/000002.xml").write_text(content)

    with pytest.raises(InputError, match=r"000002\.xml is not a Pascal VOC annotation"):
        load_voc(voc, classes=["cow"])


def test_voc_object_without_a_box_is_refused(voc: Path) -> None:
    text = voc_annotation([("cow", 0, 0)]).replace("bndbox", "box")
    (voc / "Annotations/000002.xml").write_text(text)

    with pytest.raises(InputError, match=r"000002\.xml is not a Pascal VOC annotation"):
        load_voc(voc, classes=["cow"])


# Counted with a script of its own over the annotation files: images with an instance neither
# difficult nor truncated, images with a non-difficult one, instances in the latter images.
REAL_COUNTS = {
    "aeroplane": (28, 29),
    "bicycle": (32, 35),
    "bird": (30, 30),
    "boat": (30, 33),
    "bottle": (36, 38),
    "bus": (29, 30),
    "car": (39, 54),
    "cat": (30, 31),
    "chair": (62, 83),
    "cow": (28, 28),
    "diningtable": (36, 47),
    "dog": (31, 33),
    "horse": (33, 34),
    "motorbike": (32, 33),
    "person": (147, 196),
    "pottedplant": (42, 46),
    "sheep": (28, 29),
    "sofa": (34, 40),
    "train": (28, 30),
    "tvmonitor": (38, 43),
}


def test_voc_real_counts_of_all_classes(data_root: Path) -> None:
    clean = load_voc(data_root)
    not_difficult = load_voc(data_root / "VOCdevkit", year=2007, filter="difficult")

    counts = {a.name: (len(a), len(b)) for a, b in zip(clean, not_difficult, strict=True)}
    assert counts == REAL_COUNTS
    assert tuple(counts) == VOC_CLASSES
    shown = {item.image.name for images in not_difficult for item in images.images}
    assert len(shown) == 551


def test_voc_real_segmentations_lie_in_the_classes_boxes(data_root: Path) -> None:
    segmented = 0
    for images in load_voc(data_root, filter="difficult"):
        for item in images.images:
            if item.read_labels is None:
                continue
            segmented += 1
            rows, columns = np.nonzero(item.labels() == 1)
            inside = np.zeros(rows.shape, bool)
            for x_min, y_min, x_max, y_max in item.boxes_of(images.name):
                # Boxes and segmentations were drawn apart, so allow for the border's width.
                inside |= (
                    (columns >= x_min - 5)
                    & (columns < x_max + 5)
                    & ((rows >= y_min - 5) & (rows < y_max + 5))
                )
            assert inside.mean() > 0.97
    assert segmented > 57


# --- PASCAL-Part ---


def mask(rows: slice, columns: slice) -> np.ndarray:
    drawn = np.zeros(SHAPE, np.uint8)
    drawn[rows, columns] = 1
    return drawn


HORSE = (
    "horse",
    mask(slice(0, 4), slice(0, 4)),
    [
        ("head", mask(slice(0, 2), slice(0, 2))),
        ("leye", mask(slice(0, 1), slice(0, 1))),
        ("neck", mask(slice(0, 1), slice(2, 4))),
        ("torso", mask(slice(1, 2), slice(2, 4))),
        ("lfuleg", mask(slice(2, 3), slice(1, 2))),
        ("lfho", mask(slice(3, 4), slice(1, 2))),
        ("tail", mask(slice(2, 3), slice(3, 4))),
    ],
)
BUS = (
    "bus",
    mask(slice(2, 4), slice(4, 6)),
    [
        ("frontside", mask(slice(2, 4), slice(4, 6))),
        ("wheel_1", mask(slice(3, 4), slice(4, 5))),
        ("wheel_2", mask(slice(3, 4), slice(5, 6))),
    ],
)


@pytest.fixture
def voc2010(tmp_path: Path) -> Path:
    folder = write_voc(tmp_path / "VOCdevkit" / "VOC2010")
    for class_name in ("horse", "bus", "cow"):
        (folder / f"ImageSets/Main/{class_name}_trainval.txt").write_text("000005 1\n000001 -1\n")
    (folder / "Annotations/000005.xml").write_text(voc_annotation([("horse", 0, 0), ("bus", 0, 0)]))
    person = ("person", mask(slice(0, 2), slice(4, 6)), [])
    write_parts(folder / "Annotations_Part/000005.mat", [person, HORSE, BUS])
    return folder


def test_pascal_part_merges_the_parts_of_table_3(voc2010: Path) -> None:
    (horses,) = load_pascal_part(voc2010, {"horse": TABLE3_PARTS["horse"]})

    assert horses.part_names == ("head", "neck+torso", "leg")
    assert [item.image.path.stem for item in horses.images] == ["000005"]
    # 254: of the horse, but in none of the three (its tail, and what no part covers).
    assert horses.images[0].labels().tolist() == [
        [1, 1, 2, 2, 0, 0],
        [1, 1, 2, 2, 0, 0],
        [254, 3, 254, 254, 0, 0],
        [254, 3, 254, 254, 0, 0],
    ]


def test_pascal_part_persons_beside_the_object_are_told_from_the_background(voc2010: Path) -> None:
    rider = ("person", mask(slice(0, 2), slice(3, 6)), [("head", mask(slice(0, 1), slice(4, 5)))])
    write_parts(voc2010 / "Annotations_Part/000005.mat", [HORSE, BUS, rider])

    (horses,) = load_pascal_part(
        voc2010, {"horse": TABLE3_PARTS["horse"]}, others=["person", "horse"]
    )

    assert horses.part_names == ("head", "neck+torso", "leg")
    assert horses.others == ("person",)
    # Where the horse and its rider are both drawn it is the horse; the bus is background.
    assert horses.images[0].labels().tolist() == [
        [1, 1, 2, 2, 4, 4],
        [1, 1, 2, 2, 4, 4],
        [254, 3, 254, 254, 0, 0],
        [254, 3, 254, 254, 0, 0],
    ]


@pytest.mark.parametrize(
    ("objects", "kept"),
    [
        ([("horse", 0, 0)], True),
        ([("horse", 0, 0), ("bus", 1, 1)], True),
        ([("horse", 0, 0), ("horse", 1, 0)], False),
        ([("horse", 0, 0), ("horse", 0, 1)], False),
    ],
)
def test_pascal_part_leaves_out_images_with_a_marked_object_of_the_class(
    voc2010: Path, objects: Objects, kept: bool
) -> None:
    (voc2010 / "Annotations/000005.xml").write_text(voc_annotation(objects))
    (horses,) = load_pascal_part(voc2010, {"horse": TABLE3_PARTS["horse"]})
    assert len(horses.images) == kept


def test_pascal_part_numbered_parts_are_one(voc2010: Path) -> None:
    (buses,) = load_pascal_part(
        voc2010.parent, {"bus": {"side": ["frontside"], "wheel": ["wheel"]}}
    )

    assert buses.images[0].labels()[2:, 4:].tolist() == [[1, 1], [256 + 2, 256 + 2]]
    assert not buses.images[0].labels()[:, :4].any()


def test_pascal_part_image_without_the_class_is_all_background(voc2010: Path) -> None:
    (cows,) = load_pascal_part(voc2010, {"cow": TABLE3_PARTS["cow"]})

    assert not cows.images[0].labels().any()


def test_pascal_part_masks_may_lie_beside_the_devkit(voc2010: Path) -> None:
    root = voc2010.parent.parent
    (voc2010 / "Annotations_Part").rename(root / "Annotations_Part")

    (horses,) = load_pascal_part(root, {"horse": TABLE3_PARTS["horse"]})

    assert (horses.images[0].labels() == 1).sum() == 4


def test_pascal_part_parts_that_overlap_keep_all_their_pixels(voc2010: Path) -> None:
    # The horse's eye is in its head, which VOC's file has in any order; its tail is no part.
    parts = {"head": ["head"], "eye": ["leye", "reye"], "torso": ["neck", "torso"]}
    for pieces in (HORSE[2], HORSE[2][::-1]):
        write_parts(voc2010 / "Annotations_Part/000005.mat", [(*HORSE[:2], pieces)])
        (horses,) = load_pascal_part(voc2010, {"horse": parts})
        labels = horses.images[0].labels()
        assert labels[:, :4].tolist() == [
            [256 * 1 + 2, 1, 3, 3],
            [1, 1, 3, 3],
            [254, 254, 254, 254],
            [254, 254, 254, 254],
        ]
        assert not labels[:, 4:].any()
        eye = mask(slice(0, 1), slice(0, 2))[None] > 0
        overlaps = count_overlaps([(eye, labels)], 3)
        # Two pixels, both of the head's four; one of them is all of the eye.
        assert iou(overlaps).tolist() == [[0, 2 / 4, 1 / 2, 0]]
        assert coverage(overlaps).tolist() == [[0, 2 / 4, 1, 0]]


def test_pascal_part_mask_of_one_row_stays_a_mask(voc2010: Path) -> None:
    Image.new("RGB", (5, 1)).save(voc2010 / "JPEGImages/000005.jpg")
    row = np.array([[0, 1, 1, 0, 0]], np.uint8)
    write_parts(voc2010 / "Annotations_Part/000005.mat", [("horse", row, [("head", row)])])

    (horses,) = load_pascal_part(voc2010, {"horse": TABLE3_PARTS["horse"]})

    assert horses.images[0].labels().tolist() == [[0, 1, 1, 0, 0]]


def test_pascal_part_missing_files_are_named(voc2010: Path) -> None:
    parts = {"horse": TABLE3_PARTS["horse"]}
    (voc2010 / "Annotations_Part/000005.mat").unlink()
    with pytest.raises(InputError, match=r"000005\.mat"):
        load_pascal_part(voc2010, parts)

    (voc2010 / "Annotations_Part").rmdir()
    with pytest.raises(InputError, match=r"neither .*VOC2010/Annotations_Part nor"):
        load_pascal_part(voc2010.parent, parts)

    voc2010.rename(voc2010.with_name("VOC2007"))
    with pytest.raises(InputError, match="no folder VOC2010"):
        load_pascal_part(voc2010.parent, parts)


@pytest.mark.parametrize("content", [{"other": 1}, {"anno": {"imname": "x"}}, {"anno": 3.0}, None])
def test_pascal_part_damaged_file_is_named(voc2010: Path, content: dict[str, Any] | None) -> None:
    path = voc2010 / "Annotations_Part/000005.mat"
    if content is None:
        path.write_bytes(b"not MATLAB's")
    else:
        scipy.io.savemat(path, content)
    (horses,) = load_pascal_part(voc2010, {"horse": TABLE3_PARTS["horse"]})

    with pytest.raises(InputError, match=r"000005\.mat is not a PASCAL-Part"):
        horses.images[0].labels()


@pytest.mark.parametrize("share", [0, 0.02, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("compressed", [False, True])
def test_pascal_part_truncated_file_is_named(voc2010: Path, share: float, compressed: bool) -> None:
    path = voc2010 / "Annotations_Part/000005.mat"
    scipy.io.savemat(path, {"anno": scipy.io.loadmat(path)["anno"]}, do_compression=compressed)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    (horses,) = load_pascal_part(voc2010, {"horse": TABLE3_PARTS["horse"]})

    with pytest.raises(InputError, match=r"000005\.mat is not a PASCAL-Part"):
        horses.images[0].labels()


def test_pascal_part_class_without_parts_is_refused(voc2010: Path) -> None:
    with pytest.raises(InputError, match="no class “sofa”"):
        load_pascal_part(voc2010, {"sofa": {"seat": ["seat"]}})


# The part names of the data set's own part2ind.m, "_N" standing for a number.
OWN_NAMES = {
    "aeroplane": "body stern lwing rwing tail engine_N wheel_N",
    "bicycle": "fwheel bwheel saddle handlebar chainwheel headlight_N",
    "bird": "head leye reye beak torso neck lwing rwing lleg lfoot rleg rfoot tail",
    "bottle": "cap body",
    "bus": "frontside leftside rightside backside roofside leftmirror rightmirror fliplate "
    "bliplate door_N wheel_N headlight_N window_N",
    "cat": "head leye reye lear rear nose torso neck lfleg lfpa rfleg rfpa lbleg lbpa rbleg rbpa "
    "tail",
    "cow": "head leye reye lear rear muzzle lhorn rhorn torso neck lfuleg lflleg rfuleg rflleg "
    "lbuleg lblleg rbuleg rblleg tail",
    "dog": "head leye reye lear rear nose torso neck lfleg lfpa rfleg rfpa lbleg lbpa rbleg rbpa "
    "tail muzzle",
    "horse": "head leye reye lear rear muzzle torso neck lfuleg lflleg rfuleg rflleg lbuleg lblleg "
    "rbuleg rblleg tail lfho rfho lbho rbho",
    "motorbike": "fwheel bwheel handlebar saddle headlight_N",
    "person": "head leye reye lear rear lebrow rebrow nose mouth hair torso neck llarm luarm lhand "
    "rlarm ruarm rhand llleg luleg lfoot rlleg ruleg rfoot",
    "pottedplant": "pot plant",
    "train": "head hfrontside hleftside hrightside hbackside hroofside headlight_N coach_N "
    "cfrontside_N cleftside_N crightside_N cbackside_N croofside_N",
    "tvmonitor": "screen",
}
OWN_NAMES |= {"car": OWN_NAMES["bus"], "sheep": OWN_NAMES["cow"]}


def test_merges_name_each_part_of_the_data_set_once() -> None:
    assert set(TABLE4_PARTS) == set(OWN_NAMES)
    for class_name, parts in TABLE4_PARTS.items():
        merged = [name for own_names in parts.values() for name in own_names]
        assert sorted(merged) == sorted(OWN_NAMES[class_name].replace("_N", "").split())


@pytest.mark.parametrize("class_name", ["cow", "horse"])
def test_table_3_parts_are_all_but_the_tail(class_name: str) -> None:
    merged = [name for own_names in TABLE3_PARTS[class_name].values() for name in own_names]
    assert sorted([*merged, "tail"]) == sorted(OWN_NAMES[class_name].split())
