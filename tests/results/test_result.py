"""A whole study without the command line: images of all kinds in, regions, tables, exports out."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from planted import planted
from pycocotools.coco import COCO
from torch.utils.data import Dataset

import deepff
from deepff.errors import InputError, InputWarning
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import as_pixels, read_pixels
from deepff.networks.backbone import Backbone

SIZE = 96


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return deepff.load_backbone(device="cpu")


@pytest.fixture(scope="module")
def photos(data_root: Path) -> list[Path]:
    return sorted((data_root / "icoseg/images").glob("042*/*"))[:3]


@pytest.fixture(scope="module")
def arrays(photos: list[Path]) -> list[np.ndarray]:
    return [read_pixels(path) for path in photos]


@pytest.fixture(scope="module")
def from_arrays(arrays: list[np.ndarray], backbone: Backbone) -> deepff.Result:
    return deepff.discover(arrays, 2, model=backbone, size=SIZE)


class Photos(Dataset):
    """A data set that counts what it is asked for, and gives tuples as torchvision's do."""

    def __init__(self, images: list[np.ndarray]) -> None:
        self.images = images
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.from_numpy(self.images[index]).permute(2, 0, 1).float() / 255, 7


@pytest.mark.parametrize("kind", ["paths", "PIL", "tensors", "Dataset", "generator"])
def test_whatever_images_are_given_as_the_result_is_the_same(
    kind: str,
    photos: list[Path],
    arrays: list[np.ndarray],
    from_arrays: deepff.Result,
    backbone: Backbone,
) -> None:
    images = {
        "paths": lambda: photos,
        "PIL": lambda: [Image.fromarray(array) for array in arrays],
        "tensors": lambda: [torch.from_numpy(array).permute(2, 0, 1) for array in arrays],
        "Dataset": lambda: Photos(arrays),
        "generator": lambda: (array for array in arrays),
    }[kind]()
    found = deepff.discover(images, 2, model=backbone, size=SIZE)
    # A file may be decoded at a reduced scale.
    tolerance = 0.02 if kind == "paths" else 0
    difference = (found.coefficients - from_arrays.coefficients).abs().max()
    assert difference <= tolerance * from_arrays.coefficients.max()
    assert found.image_sizes == from_arrays.image_sizes == [a.shape[:2] for a in arrays]
    expected = [photo.name for photo in photos] if kind == "paths" else ["0", "1", "2"]
    assert found.names == expected


def test_a_list_keeps_its_order(photos: list[Path], backbone: Backbone) -> None:
    order = [photos[2], photos[0], photos[1]]
    found = deepff.discover(order, 1, model=backbone, size=SIZE)
    assert found.paths == order


def test_images_that_are_none_are_skipped_by_name(
    arrays: list[np.ndarray], backbone: Backbone
) -> None:
    found = deepff.discover(
        [arrays[0], arrays[1] * 1.0, np.zeros((0, 4, 3), np.uint8)], 1, model=backbone, size=SIZE
    )
    assert found.names == ["0"] and "1 images (2 skipped)" in repr(found)
    assert [(file.name, file.reason) for file in found.skipped] == [
        (
            "1",
            f"an array {arrays[1].shape} of values outside 0 to 1; give images before their "
            "normalization, or normalized=True to discover",
        ),
        ("2", "an array (0, 4, 3) has no pixels"),
    ]
    with pytest.raises(InputError, match="the list mixes files and images"):
        deepff.discover([arrays[0], "photo.jpg"], 1, model=backbone)
    with pytest.raises(InputError, match="no images are given"):
        deepff.discover([], 1, model=backbone)


def test_a_photograph_named_twice_is_said_to_be_taken_once(
    photos: list[Path], backbone: Backbone
) -> None:
    with pytest.warns(InputWarning, match="3 paths name 2 images"):
        found = deepff.discover([*photos[:2], photos[0]], 1, model=backbone, size=SIZE)
    assert found.paths == photos[:2]


def test_equal_arrays_keep_their_places(arrays: list[np.ndarray], backbone: Backbone) -> None:
    found = deepff.discover([arrays[0], arrays[1], arrays[0]], 1, model=backbone, size=SIZE)
    assert found.names == ["0", "1", "2"]
    torch.testing.assert_close(found.heatmaps.grid(0), found.heatmaps.grid(2))


PIXELS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [102, 102, 102]]], np.uint8)


@pytest.mark.parametrize(
    "item",
    [
        PIXELS / 255,
        PIXELS.astype(np.float32) / 255,
        PIXELS.astype(np.uint16) * 257,
        np.dstack([PIXELS, np.full((2, 2), 255, np.uint8)]),
        torch.from_numpy(PIXELS).permute(2, 0, 1).double() / 255,
        torch.from_numpy(PIXELS).permute(2, 0, 1).to(torch.bfloat16) / 255,
        Image.fromarray(PIXELS),
        (PIXELS, "a label"),
    ],
)
def test_pixels_are_the_same_in_whatever_form(item: object) -> None:
    found = as_pixels(item)
    assert np.abs(found.astype(int) - PIXELS).max() <= 1 and found.flags.writeable


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (np.zeros((4, 4, 5), np.uint8), "give"),
        (torch.full((3, 2, 2), 2.0), "before their normalization"),
        (torch.zeros(2, 2), "give"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), "uint8"),
        (np.full((2, 2, 3), np.nan), "before their normalization"),
        ({"pixels": 1}, "a dict is not an image"),
    ],
)
def test_items_that_are_no_image_say_what_would_be(item: object, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match=reason):
        as_pixels(item)


def test_an_item_is_turned_as_its_exif_data_say() -> None:
    image = Image.new("RGB", (3, 2), "red")
    image.putpixel((0, 0), (0, 0, 255))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    pixels = as_pixels(Image.open(file))
    assert pixels.shape == (3, 2, 3)
    assert pixels[0, 1].tolist() == [0, 0, 255]


def test_a_data_set_is_asked_for_one_item_at_a_time(
    arrays: list[np.ndarray], backbone: Backbone
) -> None:
    photos = Photos(arrays)
    found = deepff.discover(photos, 1, model=backbone, size=SIZE)
    photos.asked.clear()
    next(found.regions(refine="guided-crf"))
    assert photos.asked.count(0) == 1


def test_regions_boxes_and_table_agree(from_arrays: deepff.Result) -> None:
    table = from_arrays.to_dataframe(threshold="max-fraction", value=0.4)
    boxes = {
        (box.image, box.region): box.box
        for box in from_arrays.boxes(threshold="max-fraction", value=0.4, min_area=1)
    }
    regions = list(from_arrays.regions(threshold="max-fraction", value=0.4))
    assert len(table) == 6 and list(table.image[:2]) == ["0", "0"]
    for row in table.itertuples():
        found = regions[from_arrays.names.index(row.image)]
        mask = found.masks[found.names.index(row.region)]
        assert row.share == pytest.approx(float(mask.float().mean()))
        assert 0 <= row.strength <= 1
        if mask.any():
            assert (row.x_min, row.y_min, row.x_max, row.y_max) == boxes[row.image, row.region]
        else:
            assert pd.isna(row.x_min)
    assert table.groupby("region").strength.max().tolist() == pytest.approx([1, 1], abs=1e-3)


def test_named_parts_merge_in_the_table(tmp_path: Path) -> None:
    result = planted(tmp_path)
    table = result.to_dataframe(
        threshold="max-fraction", value=0.5, parts={0: "left", 1: "right", 2: "right"}
    )
    assert list(table.region) == ["left", "right"] * 3
    assert table.share.tolist() == pytest.approx([3 / 8, 3 / 8] * 3)
    assert table[["x_min", "y_min", "x_max", "y_max"]].values.tolist()[:2] == [
        [0, 0, 3, 6],
        [5, 0, 8, 6],
    ]


def test_arrays_become_coco_annotations(
    from_arrays: deepff.Result, arrays: list[np.ndarray], tmp_path: Path
) -> None:
    choices = {"threshold": "otsu-image", "refine": "dense-crf"}
    summary = from_arrays.export("coco", tmp_path / "out", **choices)
    coco = COCO(str(next((tmp_path / "out" / "annotations").glob("*.json"))))
    assert len(coco.anns) == summary.n_instances > 0
    assert [(image["height"], image["width"]) for image in coco.loadImgs(coco.getImgIds())] == [
        array.shape[:2] for array in arrays
    ]
    labels = [
        found.labels for found in from_arrays.regions(threshold="otsu-image", refine="dense-crf")
    ]
    for index, image_id in enumerate(coco.getImgIds()):
        union = np.zeros(arrays[index].shape[:2], bool)
        for annotation in coco.loadAnns(coco.getAnnIds([image_id])):
            union |= coco.annToMask(annotation).astype(bool)
        # But for specks, which are no annotations.
        assert (union != (labels[index].numpy() > 0)).mean() < 5e-3


def test_a_saved_result_of_arrays_knows_them_again_when_they_are_given(
    from_arrays: deepff.Result, arrays: list[np.ndarray], tmp_path: Path
) -> None:
    from_arrays.save(tmp_path / "result")
    loaded = deepff.load(tmp_path / "result")
    assert loaded.paths == [None] * 3
    with pytest.raises(InputError, match=r"load the result with images="):
        next(loaded.regions(refine="guided-crf"))
    again = deepff.load(tmp_path / "result", images=arrays)
    expected = next(from_arrays.regions(refine="guided-crf"))
    assert torch.equal(next(again.regions(refine="guided-crf")).masks, expected.masks)
    with pytest.raises(InputError, match="none of the given images belongs"):
        deepff.load(tmp_path / "result", images=[array[:-1] for array in arrays])


def test_moved_photographs_are_found_by_name_and_content(
    photos: list[Path], backbone: Backbone, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new" / "deeper"
    old.mkdir()
    new.mkdir(parents=True)
    for photo in photos:
        (old / photo.name).write_bytes(photo.read_bytes())
    deepff.discover(old, 1, model=backbone, size=SIZE).save(tmp_path / "result")
    for photo in photos:
        (old / photo.name).rename(new / photo.name)
    # Another photograph under the old name is not taken for it.
    Image.new("RGB", (5, 5)).save(new / photos[0].name, "JPEG")
    loaded = deepff.load(tmp_path / "result", images=tmp_path / "new")
    assert loaded.paths == [old / photos[0].name, *(new / photo.name for photo in photos[1:])]


def test_photographs_that_changed_places_are_not_taken_for_each_other(
    arrays: list[np.ndarray], backbone: Backbone, tmp_path: Path
) -> None:
    same_size = [np.ascontiguousarray(array[:200, :200]) for array in arrays]
    deepff.discover(same_size, 1, model=backbone, size=SIZE).save(tmp_path / "result")
    swapped = [same_size[1], same_size[0], same_size[2]]
    loaded = deepff.load(tmp_path / "result", images=swapped)
    assert [image.origin is None for image in loaded.images] == [True, True, False]


def test_what_deepff_wrote_is_no_photograph(
    photos: list[Path], backbone: Backbone, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in photos:
        (folder / photo.name).write_bytes(photo.read_bytes())
    result = deepff.discover(folder, 2, model=backbone, size=SIZE)
    result.export(["png"], folder)
    result.export("voc", folder / "voc", images="copy")
    assert len(list(folder.rglob("*.png"))) >= 3
    assert deepff.discover(folder, 2, model=backbone, size=SIZE).paths == result.paths


@pytest.mark.parametrize("damage", ["no status", "cut heat maps", "no heat maps", "no JSON"])
def test_a_damaged_result_is_one_sentence(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "result"
    planted(tmp_path).save(folder)
    (shard,) = (folder / "heatmaps").glob("*.safetensors")
    if damage == "no status":
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["status"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    elif damage == "cut heat maps":
        shard.write_bytes(shard.read_bytes()[:-10])
    elif damage == "no heat maps":
        shard.unlink()
    else:
        (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"run its command again|run the command|holds no deepff"):
        deepff.load(folder)


def test_a_picture_shows_what_is_asked_for(from_arrays: deepff.Result) -> None:
    whole = from_arrays.plot()
    narrow = from_arrays.plot(images=[1], height=60)
    single = from_arrays.plot(images=1, factors=1, height=60)
    assert whole.width > narrow.width and whole.height > narrow.height > single.height
    faint = from_arrays.plot(images=[1], factors=[1], height=60, opacity=0)
    photo, below = (np.asarray(faint)[top : top + 60, 96:] for top in (0, 66))
    assert np.array_equal(photo, below)
    for wrong in (
        {"factors": [2]},
        {"factors": []},
        {"k": 3},
        {"images": [3]},
        {"height": 2},
        {"opacity": 2},
    ):
        with pytest.raises(InputError):
            from_arrays.plot(**wrong)


def test_results_and_heat_maps_say_and_show_what_they_are(from_arrays: deepff.Result) -> None:
    rows, k = from_arrays.coefficients.shape
    assert repr(from_arrays.heatmaps) == f"<HeatMaps of 3 images, {k} factors, {rows} cells>"
    assert repr(from_arrays).startswith("<Result of 3 images, efficientnet_lite0 bn2, nmf")
    for shown in (from_arrays, from_arrays.heatmaps):
        assert shown._repr_html_().startswith('<img alt="Heat maps"')


def test_numbers_of_numpy_are_numbers(
    arrays: list[np.ndarray], backbone: Backbone, tmp_path: Path
) -> None:
    found = deepff.discover(
        arrays, np.int64(2), model=backbone, size=np.int64(SIZE), batch_size=np.int32(2)
    )
    found.save(tmp_path / "result")
    assert deepff.load(tmp_path / "result").sources[0].size == SIZE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": []}, "layer is empty"),
        ({"size": 0}, "size must be a whole number, 1 or more"),
        ({"size": 44.5}, "size must be a whole number"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"random_state": -1}, "random_state must be"),
        ({"n_components": 0}, "whole number, 1 or more"),
        ({"n_components": 1.5}, "give a number"),
        ({"recipe": "papers"}, "choose one of paper, contrast"),
        ({"memory": "1MiB"}, "memory, in bytes, must be a whole number"),
        ({"method": "ica"}, "choose one of auto, nmf, semi-nmf, pca, kmeans"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    options: dict, message: str, arrays: list[np.ndarray], backbone: Backbone
) -> None:
    with pytest.raises(InputError, match=message):
        deepff.discover(arrays, model=backbone, **options)


@pytest.mark.parametrize("parts", [{}, ["head"]])
def test_parts_that_name_no_factor_are_refused(from_arrays: deepff.Result, parts: object) -> None:
    with pytest.raises(InputError, match="parts map factors to names"):
        from_arrays.regions(parts=parts)


def test_one_layer_in_a_list_is_that_layer(
    arrays: list[np.ndarray], backbone: Backbone, from_arrays: deepff.Result
) -> None:
    found = deepff.discover(arrays, 2, model=backbone, size=SIZE, layer=["bn2"])
    assert torch.equal(found.coefficients, from_arrays.coefficients)


def test_an_estimator_is_a_method(
    arrays: list[np.ndarray], backbone: Backbone, from_arrays: deepff.Result
) -> None:
    found = deepff.discover(arrays, 2, model=backbone, size=SIZE, method=deepff.NMF(2))
    assert found.method == "nmf"
    assert torch.equal(found.coefficients, from_arrays.coefficients)
    slow = deepff.discover(arrays, model=backbone, size=SIZE, method=deepff.NMF(3, solver="mu"))
    assert slow.n_components == 3 and slow.options["solver"] == "mu"
