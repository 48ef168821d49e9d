"""The recipe contrast from images to masks, its steps alone, and masks of the object."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import deepff
from deepff.activations.extraction import extract_layers
from deepff.cli.main import app
from deepff.cli.parameters import byte_count
from deepff.discovery.contrast import border_contrast
from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.factorization import NMF
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.options import RegionOptions, region_options
from deepff.regions.regions import find_regions
from deepff.result import Result


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone()


@pytest.fixture(scope="module")
def elephants(data_root: Path) -> GroundTruthSet:
    return load_icoseg(data_root / "icoseg", groups=["021"])[0]


@pytest.fixture(scope="module")
def contrast(elephants, backbone) -> Result:
    files = [item.image for item in elephants.images]
    return deepff.discover(files, recipe="contrast", model=backbone)


def quality(result: Result, truth: GroundTruthSet, options: RegionOptions | None = None) -> float:
    labels = [item.labels() for item in truth.images]
    pairs = zip((found.masks for found in find_regions(result, 1, options)), labels, strict=True)
    return float(iou(count_overlaps(pairs, 1))[0, 1])


def test_the_recipe_beats_the_papers_and_each_step_helps(elephants, backbone, contrast):
    files = [item.image for item in elephants.images]
    paper = quality(deepff.discover(files, 1, model=backbone), elephants)
    unrefined = quality(contrast, elephants, RegionOptions("otsu-image"))
    whole = quality(contrast, elephants)
    # 0.588, 0.738 and 0.866 when measured
    assert paper < 0.65 and unrefined > paper + 0.1 and whole > unrefined + 0.08 and whole > 0.82
    assert contrast.layer == "blocks.5.0.bn1 + blocks.6.0.bn1"
    assert contrast.separation is not None and contrast.separation > 0.11


def test_signed_layers_find_the_object_too(elephants, backbone, tmp_path):
    files = [item.image for item in elephants.images[::3]]
    options = {"recipe": "contrast", "model": backbone, "size": 224}
    result = deepff.discover(files, layer=["blocks.4.2", "blocks.6.0"], **options)
    assert result.layer == "blocks.4.2:signs + blocks.6.0:signs"
    assert result.components.shape == (1, 2 * (112 + 320)) and result.components.min() >= 0
    truth = replace(elephants, images=elephants.images[::3])
    # 0.776 when measured.
    assert quality(result, truth) > 0.7
    result.bank.save(tmp_path / "bank.safetensors")
    new = deepff.apply(tmp_path / "bank.safetensors", files, model=backbone)
    torch.testing.assert_close(new.coefficients, result.coefficients, rtol=1e-3, atol=1e-4)


def test_a_saved_object_keeps_its_classifier(contrast, tmp_path):
    contrast.save(tmp_path / "out")
    loaded = deepff.load(tmp_path / "out")
    found, again = contrast.factorization(1), loaded.factorization(1)
    assert torch.equal(found.probabilities.coefficients, again.probabilities.coefficients)
    assert found.probabilities.grids == again.probabilities.grids
    assert again.classifier.sources == found.classifier.sources
    assert torch.equal(again.classifier.weights, found.classifier.weights)
    first, second = next(find_regions(contrast)), next(find_regions(loaded))
    assert torch.equal(first.masks, second.masks)


def test_a_classifier_that_is_not_there_is_refused_where_it_is_asked_for(elephants, backbone):
    """And where the recipe would only prefer it, the dense CRF is taken."""
    files = [item.image for item in elephants.images[:2]]
    paper = deepff.discover(files, 1, model=backbone)
    with pytest.raises(InputError, match="have no pixel classifier"):
        paper.regions(refine="classifier")
    steps = deepff.discover(files, recipe="contrast", layer="blocks.6.0.bn1", model=backbone)
    assert steps.factorization(1).classifier is None
    crf = RegionOptions("otsu-image", refine="dense-crf")
    for own, expected in zip(find_regions(steps), find_regions(steps, 1, crf), strict=True):
        assert torch.equal(own.masks, expected.masks)


def test_a_threshold_beside_the_classifier_is_refused():
    with pytest.raises(InputError, match="leave out the threshold"):
        region_options("contrast", "otsu", refine="classifier")
    assert region_options("contrast").refine == "classifier"
    assert region_options("contrast", "otsu").refine == "dense-crf"
    assert "classifier" in str(region_options("contrast"))


def test_the_recipe_is_its_steps(elephants, backbone, contrast):
    layers = ["blocks.5.0.bn1", "blocks.6.0.bn1"]
    files = [item.image for item in elephants.images]
    steps = deepff.discover(files, layer=layers, channel_weights="border", model=backbone)
    assert torch.equal(steps.coefficients, contrast.coefficients)
    assert steps.recipe == "paper" and contrast.recipe == "contrast"
    assert [source.multiple for source in steps.sources] == [32, 32]


def test_weighted_channels_with_several_factors_are_the_weighted_matrix(elephants, backbone):
    files = [item.image for item in elephants.images[:4]]
    result = deepff.discover(files, 3, channel_weights="border", model=backbone)
    (activations,), _ = extract_layers(files, backbone, [map_layers(backbone).resolve()])
    weights = border_contrast(activations).weights
    torch.testing.assert_close(result.channel_weights, weights)
    expected = NMF(3, random_state=0).fit_transform(activations.rows * weights)
    torch.testing.assert_close(result.coefficients, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "contrast", "n_components": 3}, "one map of the object"),
        ({"recipe": "contrast", "method": "pca"}, "one map of the object"),
        ({"recipe": "contrast", "method": NMF(1, solver="mu")}, "without a solver"),
        ({"layer": ["bn1", "bn2"], "method": NMF(1, tol=1e-3)}, "without a solver"),
        ({"layer": ["bn2", "bn2"]}, "named twice"),
        ({"recipe": "colour"}, "no recipe 'colour'; choose one of paper, contrast"),
        (
            {"channel_weights": "centre"},
            "no channel weighting 'centre'; choose one of none, border",
        ),
        ({"layer": ["bn2", "nothing"]}, "has no layer 'nothing'"),
        ({"memory": 1000}, "1000 bytes of memory are too few; use 256 MiB or more"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(elephants, backbone, options, message):
    with pytest.raises(InputError, match=message):
        deepff.discover([elephants.images[0].image], model=backbone, **options)


@pytest.mark.parametrize(
    "option",
    [
        *(("--method", method) for method in ("auto", "nmf", "semi-nmf", "pca", "kmeans")),
        *(("--recipe", recipe) for recipe in ("paper", "contrast")),
        *(("--solver", solver) for solver in ("hals", "mu")),
        *(("--channel-weights", weights) for weights in ("none", "border")),
        ("--layer", "bn1", "--layer", "bn2"),
    ],
    ids=" ".join,
)
def test_parts_inside_the_object_refuse_what_would_have_no_effect(tmp_path, option):
    """Also where it is what would hold without it, such as the default method."""
    arguments = ["discover", "--sample", "--inside-object", *option, "--out", str(tmp_path / "out")]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert "sets how to factorize" in outcome.stderr and option[0] in outcome.stderr
    assert not (tmp_path / "out").exists()


def run(*arguments: str | Path) -> str:
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_the_object_of_a_result_is_found_shown_and_kept(elephants, tmp_path):
    """With k = 1 beside it: both recipes side by side in the report."""
    images = [item.image.path for item in elephants.images[:3]]
    folder = tmp_path / "result"
    run("discover", *images, "-k", "1,2", "--out", folder)
    run("segment", folder, "--object", "--recipe", "paper")
    assert json.loads((folder / "regions/masks-k1.json").read_text())["description"] == (
        "threshold: percentile 75 over the set"
    )
    run("segment", folder, "--object")
    for masks in (folder / "masks/k1", folder / "object/masks/k1"):
        assert sorted(path.name for path in masks.iterdir() if path.is_dir()) == [
            "labels",
            "object",
        ]
    own = sorted((folder / "object/masks/k1/labels").glob("*.png"))
    assert [path.stem for path in own] == [path.stem for path in images]
    masks = [torch.from_numpy(np.asarray(Image.open(path)) > 0)[None] for path in own]
    truth = [item.labels() for item in elephants.images[:3]]
    assert float(iou(count_overlaps(zip(masks, truth, strict=True), 1))[0, 1]) > 0.8

    report = (folder / "report.html").read_text()
    assert "left the paper" in report and "object/report.html" in report
    widths = [Image.open(path).width for path in sorted((folder / "regions/recipes").glob("*"))]
    alone = [Image.open(path).width for path in sorted((folder / "thumbnails").glob("*.jpg"))]
    assert widths == [2 * width for width in alone]

    before = (folder / "object/manifest.json").read_text()
    run("localize", folder, "--object")
    assert (folder / "object/manifest.json").read_text() == before
    assert len(json.loads((folder / "object/boxes/k1.json").read_text())["boxes"]) == 3
    loaded = deepff.load(folder)
    assert loaded.object is not None and loaded.object.recipe == "contrast"
    # A new run into the folder replaces the object with the rest, when it is told to.
    run("discover", images[0], "-k", "1", "--out", folder, "--overwrite")
    assert not (folder / "object").exists()


def test_an_object_that_lacks_images_is_found_anew_when_they_have_come_back(elephants, tmp_path):
    photos, folder = tmp_path / "photos", tmp_path / "result"
    photos.mkdir()
    for item, name in zip(elephants.images, "abc", strict=False):
        with Image.open(item.image.path) as image:
            image.resize((192, 128)).save(photos / f"{name}.png")
    run("discover", photos, "-k", "2", "--size", "192", "--out", folder)
    whole = {name: (photos / f"{name}.png").read_bytes() for name in "abc"}
    half = Image.new("RGB", (96, 64))

    def seen() -> tuple[str, dict[str, tuple[int, int]]]:
        run("localize", folder, "--object", "--refine", "none", "--overwrite")
        manifest = (folder / "object/manifest.json").read_text()
        images = deepff.load(folder / "object").images
        return manifest, {image.name: image.size for image in images}

    (photos / "a.png").unlink()
    (photos / "b.png").write_bytes(whole["b"][:40])
    alone, sizes = seen()
    assert sizes == {"c.png": (128, 192)}
    assert seen()[0] == alone  # what is still missing or broken is not looked for over and over
    (photos / "a.png").write_bytes(whole["a"])
    sizes = seen()[1]
    assert sizes == {"a.png": (128, 192), "c.png": (128, 192)}
    half.save(photos / "b.png")  # another photograph is not the one that was factorized
    assert seen()[1] == sizes
    (photos / "b.png").write_bytes(whole["b"])
    mended, sizes = seen()
    assert sizes == dict.fromkeys(["a.png", "b.png", "c.png"], (128, 192))
    (photos / "c.png").unlink()
    assert seen()[0] == mended  # it was there when the object was found
    result = deepff.load(folder)
    assert deepff.find_object(result) is result.object


def test_a_finished_contrast_result_is_segmented_by_its_recipe(contrast, tmp_path):
    contrast.save(tmp_path)
    run("segment", tmp_path)
    description = json.loads((tmp_path / "regions/masks-k1.json").read_text())["description"]
    assert description == "the set's pixel classifier, refined by dense CRF"
    outcome = CliRunner().invoke(app, ["segment", str(tmp_path), "--crf", "--refine", "dense-crf"])
    assert outcome.exit_code == 2 and "--crf means --refine dff-crf" in outcome.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2**31), ("500MB", 500_000_000), ("1.5k", 1500), ("7", 7), ("3 tib", 3 * 2**40)],
)
def test_sizes_of_memory(text, expected):
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 apples", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="such as 2GiB"):
        byte_count(text)


def test_parts_lie_inside_the_object_one_a_pixel(elephants, backbone, tmp_path):
    files = [item.image for item in elephants.images[:4]]
    result = deepff.discover_parts(files, [1, 3], model=backbone)
    assert result.parts_of == "object" and result.object is not None
    paths = ", ".join(repr(str(file.path)) for file in files)
    call = f"deepff.discover_parts([{paths}], n_components=[1, 3], model=efficientnet_lite0)"
    assert result.command == result.object.command == call
    result.save(tmp_path / "result")
    loaded = deepff.load(tmp_path / "result")
    assert loaded.parts_of == "object" and loaded.object is not None
    crf = RegionOptions("otsu-image", refine="dense-crf")
    whole = list(find_regions(loaded.object, 1, crf))
    by_classifier, before = list(find_regions(loaded, 3)), list(find_regions(result, 3))
    sizes = set()
    for index, found in enumerate(find_regions(loaded, 3, crf)):
        assert torch.equal(by_classifier[index].labels, before[index].labels)
        assert not torch.equal(by_classifier[index].labels, found.labels)
        # Refining the parts leaves the object's outline; rounding decides a pixel at one half.
        assert torch.equal(found.masks.sum(0), found.masks.any(0).long())
        assert (found.masks.any(0) != whole[index].masks[0]).float().mean() < 1e-4
        sizes |= {j for j in range(3) if found.masks[j].any()}
    assert sizes == {0, 1, 2}
    assert "parts of the object" in (tmp_path / "result/report.html").read_text()
    for refine in ("dff-crf", "guided-crf"):
        with pytest.raises(InputError, match="dense-crf, or by none"):
            next(find_regions(loaded, 3, RegionOptions("otsu-image", refine=refine)))


def test_the_command_finds_parts_and_says_how(cats_filling_the_frame, tmp_path):
    """Cats cropped so that they fill the frame: the other way, and a warning."""
    _, crops = cats_filling_the_frame
    out = tmp_path / "result"
    output = run("discover", crops, "-k", "2", "--inside-object", "--out", out)
    assert "do not trust the masks" in output
    assert "fill the frame" in (out / "report.html").read_text()
    assert deepff.load(out).parts_of == "frame"
    run("segment", out, "--refine", "none")
    before = (out / "regions/masks-k2.json").read_text()
    run("segment", out, "--object", "--refine", "none")
    assert len(list((out / "object/masks/k1/labels").glob("*.png"))) == 8
    assert (out / "regions/masks-k2.json").read_text() == before
