"""The common form of ground truth, iCoseg's layout, and folders of label images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthImage, GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg, load_label_folder
from deepff.images.image_files import ImageFile, find_images


def write_image(path: Path, width: int = 6, height: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return path


def write_labels(path: Path, labels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels).save(path)
    return path


# --- the common form ---


def test_labels_are_read_each_time(tmp_path: Path) -> None:
    image = ImageFile(write_image(tmp_path / "a.png", width=1, height=1), "a.png")
    values = iter([3, 4])
    truth = GroundTruthImage(image, read_labels=lambda: np.full((1, 1), next(values), np.uint8))

    assert [truth.labels().item(), truth.labels().item()] == [3, 4]


def test_labels_of_an_image_without_segmentation_say_so(tmp_path: Path) -> None:
    image = ImageFile(write_image(tmp_path / "a.png"), "a.png")

    with pytest.raises(InputError, match=r"a\.png has no segmentation"):
        GroundTruthImage(image).labels()


def test_more_parts_than_labels_are_refused() -> None:
    names = tuple(map(str, range(254)))

    assert len(GroundTruthSet("all", names[:253], ()).part_names) == 253
    with pytest.raises(InputError, match="254 parts"):
        GroundTruthSet("all", names, ())


# --- iCoseg ---

GROUPS = ["2 Goose", "10 Kite", "017 Agra Taj Mahal", "018 Agra Taj Mahal 2004"]


@pytest.fixture
def icoseg(tmp_path: Path) -> Path:
    for group in GROUPS:
        for stem in ("9", "10"):
            write_image(tmp_path / "images" / group / f"{stem}.jpg")
            write_labels(tmp_path / "ground_truth" / group / f"{stem}.png", np.eye(4, 6) > 0)
    return tmp_path


def test_icoseg_groups_and_images_are_in_natural_order(icoseg: Path) -> None:
    sets = load_icoseg(icoseg)

    assert [group.name for group in sets] == GROUPS
    assert [item.image.name for item in sets[0].images] == ["9.jpg", "10.jpg"]
    assert sets[0].part_names == ("object",)


@pytest.mark.parametrize(
    ("query", "group"),
    [
        ("10", "10 Kite"),
        ("2", "2 Goose"),
        ("17", "017 Agra Taj Mahal"),
        ("018", "018 Agra Taj Mahal 2004"),
        ("goose", "2 Goose"),
        ("2004", "018 Agra Taj Mahal 2004"),
        ("017 Agra Taj Mahal", "017 Agra Taj Mahal"),
    ],
)
def test_icoseg_group_by_number_or_piece_of_name(icoseg: Path, query: str, group: str) -> None:
    assert [found.name for found in load_icoseg(icoseg, [query])] == [group]


def test_icoseg_groups_come_as_asked_and_once(icoseg: Path) -> None:
    sets = load_icoseg(icoseg, ["Kite", "2", "goose"])

    assert [group.name for group in sets] == ["10 Kite", "2 Goose"]


def test_icoseg_group_that_fits_several_or_none_names_the_candidates(icoseg: Path) -> None:
    with pytest.raises(InputError, match=r"several groups: 017 Agra Taj Mahal, 018 Agra"):
        load_icoseg(icoseg, ["Taj Mahal"])
    with pytest.raises(InputError, match="no group “Zebra”; the groups are: 2 Goose, 10 Kite"):
        load_icoseg(icoseg, ["Zebra"])


@pytest.mark.parametrize("missing", ["images", "ground_truth"])
def test_icoseg_root_laid_out_otherwise_names_the_folder(icoseg: Path, missing: str) -> None:
    (icoseg / missing).rename(icoseg / "elsewhere")

    with pytest.raises(InputError, match=f"no folder .*{missing}"):
        load_icoseg(icoseg)


def test_icoseg_takes_the_images_of_a_list_only(icoseg: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(" 10 Kite/9.jpg \n\n2 Goose/10.jpg\n")

    (kites,) = load_icoseg(icoseg, ["Kite"], listed)

    assert [item.image.name for item in kites.images] == ["9.jpg"]
    (geese,) = load_icoseg(icoseg, ["Goose"], listed)
    assert [item.image.name for item in geese.images] == ["10.jpg"]


def test_icoseg_list_of_something_else_is_refused(icoseg: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    with pytest.raises(InputError, match=r"no list of images .*list\.txt"):
        load_icoseg(icoseg, listed=listed)
    listed.write_text("10 Kite/9.jpg\n11.jpg\n")
    with pytest.raises(
        InputError, match=r"list\.txt lists “11\.jpg”, which is not an image in .*images"
    ):
        load_icoseg(icoseg, listed=listed)
    listed.write_text("10 Kite/9.jpg\n")
    with pytest.raises(InputError, match=r"list\.txt lists no image of 2 Goose"):
        load_icoseg(icoseg, listed=listed)


def test_icoseg_missing_mask_is_named(icoseg: Path) -> None:
    (icoseg / "ground_truth" / "10 Kite" / "9.png").unlink()

    with pytest.raises(InputError, match=r"10 Kite/9\.png is missing"):
        load_icoseg(icoseg)
    assert len(load_icoseg(icoseg, ["Goose"])[0]) == 2


def test_icoseg_file_that_is_no_image_needs_no_mask(icoseg: Path) -> None:
    (icoseg / "images" / "10 Kite" / "Thumbs.db").write_bytes(b"thumbnails")
    (icoseg / "images" / "Thumbs.db").write_bytes(b"thumbnails")

    kites = load_icoseg(icoseg)[1]

    assert [item.image.name for item in kites.images] == ["9.jpg", "10.jpg"]


def test_mask_of_another_size_names_the_image_and_both_sizes(icoseg: Path) -> None:
    write_labels(icoseg / "ground_truth" / "2 Goose" / "9.png", np.ones((6, 4), bool))

    with pytest.raises(InputError, match=r"9\.jpg is 4 × 6 pixels, but the image is 6 × 4"):
        load_icoseg(icoseg, ["Goose"])[0].images[0].labels()


@pytest.mark.parametrize("on", [1, 128, 255])
def test_icoseg_mask_is_what_is_not_zero_whatever_the_pixel_type(icoseg: Path, on: int) -> None:
    mask = np.zeros((4, 6), np.uint8)
    mask[1, 2:5] = on
    write_labels(icoseg / "ground_truth" / "2 Goose" / "9.png", mask)

    labels = load_icoseg(icoseg, ["Goose"])[0].images[0].labels()

    assert labels.tolist() == (mask > 0).astype(int).tolist()


def test_damaged_and_colour_masks_are_refused_by_name(icoseg: Path) -> None:
    folder = icoseg / "ground_truth" / "2 Goose"
    (folder / "9.png").write_bytes((folder / "9.png").read_bytes()[:40])
    write_labels(folder / "10.png", np.zeros((4, 6, 3), np.uint8))
    first, second = load_icoseg(icoseg, ["Goose"])[0].images

    with pytest.raises(InputError, match=r"9\.png cannot be read"):
        first.labels()
    with pytest.raises(InputError, match=r"10\.png has 3 channels"):
        second.labels()


def test_icoseg_real_groups(data_root: Path) -> None:
    sets = load_icoseg(data_root / "icoseg")

    numbers = " ".join(group.name.split()[0] for group in sets)
    assert numbers == "002 015 017 018 020 021 022 028 033 036 041 042"
    assert [len(group) for group in sets] == [19, 11, 5, 5, 10, 15, 31, 33, 10, 6, 24, 41]
    for group in sets:
        for item in group.images:
            path = data_root / "icoseg" / "ground_truth" / group.name / item.image.name
            with Image.open(path.with_suffix(".png")) as mask:
                white = mask.histogram()[255]
            assert white > 0
            assert np.bincount(item.labels().ravel())[1:].tolist() == [white]


# --- folders of label images ---


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "photos" / "cars" / "1.jpg")
    write_image(tmp_path / "photos" / "2.jpg")
    return tmp_path / "photos"


def write_label_folder(folder: Path, names: str, labels: np.ndarray) -> Path:
    for stem in ("cars/1", "2"):
        write_labels(folder / f"{stem}.png", labels)
    (folder / "labels.txt").write_text(names, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "names",
    ["wheel\ndoor\n", "wheel\r\ndoor", "background\nwheel\ndoor\n", "_background_\nwheel\ndoor\n"],
)
def test_label_folder_line_numbers_are_pixel_values(
    tmp_path: Path, image_folder: Path, names: str
) -> None:
    labels = np.zeros((4, 6), np.uint8)
    labels[0], labels[1], labels[2] = 1, 2, 255
    folder = write_label_folder(tmp_path / "drawn", names, labels)

    drawn = load_label_folder(folder, find_images(image_folder))

    assert (drawn.name, drawn.part_names) == ("drawn", ("wheel", "door"))
    assert sorted(item.image.name for item in drawn.images) == ["2.jpg", "cars/1.jpg"]
    for item in drawn.images:
        assert item.labels().tolist() == labels.tolist()


def test_label_folder_reads_a_palettes_indices_not_its_colours(
    tmp_path: Path, image_folder: Path
) -> None:
    folder = write_label_folder(tmp_path / "drawn", "wheel\ndoor", np.zeros((4, 6), np.uint8))
    palette = Image.fromarray(np.full((4, 6), 2, np.uint8))
    palette.putpalette([0, 0, 0, 255, 0, 0, 7, 7, 7])
    palette.save(folder / "2.png")

    items = load_label_folder(folder, find_images(image_folder)).images

    labels = {item.image.name: item.labels() for item in items}
    assert np.unique(labels["2.jpg"]).tolist() == [2]


def test_label_folder_value_without_a_name_is_refused(tmp_path: Path, image_folder: Path) -> None:
    folder = write_label_folder(tmp_path / "drawn", "wheel", np.full((4, 6), 2, np.uint8))

    with pytest.raises(InputError, match=r"\.png holds the value 2, but labels\.txt names 1"):
        load_label_folder(folder, find_images(image_folder)).images[0].labels()


@pytest.mark.parametrize("missing", ["labels.txt", "2.png", "cars/1.png"])
def test_label_folder_missing_file_is_named(
    tmp_path: Path, image_folder: Path, missing: str
) -> None:
    folder = write_label_folder(tmp_path / "drawn", "wheel", np.zeros((4, 6), np.uint8))
    (folder / missing).unlink()

    with pytest.raises(InputError, match=rf"/drawn/{missing}"):
        load_label_folder(folder, find_images(image_folder))


@pytest.mark.parametrize("names", ["", "background\n", "wheel\n\ndoor\n", "wheel\nwheel\n"])
def test_label_names_that_do_not_number_the_values_are_refused(
    tmp_path: Path, image_folder: Path, names: str
) -> None:
    folder = write_label_folder(tmp_path / "drawn", names, np.zeros((4, 6), np.uint8))

    with pytest.raises(InputError, match=r"labels\.txt should name each label once"):
        load_label_folder(folder, find_images(image_folder))
