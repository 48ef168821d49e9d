"""A concept bank applied to new images."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from planted import result_of
from safetensors.torch import save_file
from typer.testing import CliRunner

import deepff
from deepff.app.edits import name_factor
from deepff.app.label_file import LabelStore, load_labels
from deepff.cli.main import app
from deepff.discovery.discover import find_object
from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.options import RECIPE_OPTIONS, RegionOptions
from deepff.regions.regions import find_regions
from deepff.regions.thresholds import thresholds
from deepff.result import Result


@pytest.fixture(scope="module")
def group(data_root: Path):
    """Brown bears: five images to find concepts in, and others that they are applied to."""
    return load_icoseg(data_root / "icoseg", groups=["002"])[0]


def quality(result: Result, truth, options: RegionOptions | None = None) -> float:
    labels = {item.image.name: item.labels() for item in truth.images}
    pairs = [
        (found.masks, labels[name])
        for name, found in zip(result.names, find_regions(result, 1, options), strict=True)
    ]
    return float(iou(count_overlaps(pairs, 1))[0, 1])


def test_a_bank_gives_its_own_set_the_maps_it_came_from(group, tmp_path):
    files = [item.image for item in group.images[:3]]
    for options in ({"n_components": [1, 3]}, {"recipe": "contrast"}):
        result = deepff.discover(files, size=224, **options)
        again = deepff.apply(result.bank, files)
        for k, found in result.factorizations.items():
            applied = again.factorizations[k]
            scale = found.heatmaps.scale
            difference = (applied.coefficients - found.coefficients).abs() / scale
            assert difference.max() < 1e-3
            assert applied.relative_error == pytest.approx(found.relative_error, abs=1e-4)
            torch.testing.assert_close(applied.heatmaps.scale, scale, rtol=1e-4, atol=0)


def test_normalized_tensors_are_the_photographs_that_they_were(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.ReLU())
    own = deepff.load_backbone(net, mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1])
    pixels = torch.randint(0, 256, (3, 3, 12, 12), dtype=torch.uint8)
    mean, std = (torch.tensor(x)[:, None, None] for x in (own.mean, own.std))
    result = deepff.discover([*pixels], 2, model=own, layer="1")
    again = deepff.apply(result.bank, (pixels / 255 - mean) / std, model=own, normalized=True)
    torch.testing.assert_close(again.coefficients, result.coefficients, rtol=1e-3, atol=1e-4)
    Image.new("RGB", (12, 12)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="files are not normalized"):
        deepff.apply(result.bank, tmp_path, model=own, normalized=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_bank_made_in_mixed_precision_is_applied_where_there_is_none(group):
    files = [item.image for item in group.images[:2]]
    result = deepff.discover(files, 2, size=128)
    result.sources = tuple(replace(source, amp=True) for source in result.sources)
    assert result.bank.sources[0].amp
    again = deepff.apply(result.bank, files)
    found, applied = result.factorizations[2], again.factorizations[2]
    difference = (applied.coefficients - found.coefficients).abs() / found.heatmaps.scale
    assert difference.max() < 1e-3
    # Also for the object, which a result's own network is run for once more.
    assert find_object(result).n_components == 1


@pytest.mark.parametrize("recipe", ["paper", "contrast"])
def test_a_bank_of_half_a_set_labels_the_other_half_about_as_well_as_a_joint_run(group, recipe):
    images = group.images[:10]
    truth = replace(group, images=images)
    half, other = [i.image for i in images[::2]], [i.image for i in images[1::2]]
    joint = deepff.discover([item.image for item in images], 1, recipe=recipe)
    bank = deepff.discover(half, 1, recipe=recipe).bank
    applied = deepff.apply(bank, other)
    on_other = [name in {image.name for image in other} for name in joint.names]
    labels = {item.image.name: item.labels() for item in images}
    pairs = [
        (found.masks, labels[name])
        for name, found, wanted in zip(joint.names, find_regions(joint, 1), on_other, strict=True)
        if wanted
    ]
    expected = float(iou(count_overlaps(pairs, 1))[0, 1])
    assert quality(applied, truth) > expected - 0.05
    assert expected > (0.7 if recipe == "contrast" else 0.5)


def test_a_bank_is_applied_at_another_size(group):
    truth = replace(group, images=group.images[3:6])
    bank = deepff.discover([i.image for i in group.images[:3]], recipe="contrast", size=320).bank
    files = [item.image for item in truth.images]
    finer = deepff.apply(bank, files, size=448)
    assert {image.grid[1] for image in finer.images} == {448 // 16}
    assert {source.size for source in finer.bank.sources} == {448}
    assert deepff.apply(finer.bank, files[:1]).images[0].grid == finer.images[0].grid
    # Three images make strict scores.
    any_score = replace(RECIPE_OPTIONS["contrast"], min_score=0.0)
    assert quality(finer, truth, any_score) > 0.7
    with pytest.raises(InputError, match="size must be"):
        deepff.apply(bank, files, size=0)


def test_thresholds_are_those_of_the_banks_set_and_survive_saving(group, tmp_path):
    files = [item.image for item in group.images[:6]]
    result = deepff.discover(files[:3], 2, size=224)
    applied = deepff.apply(result.bank, files[3:])
    applied.save(tmp_path / "new")
    loaded = deepff.load(tmp_path / "new")
    own = thresholds(result.heatmaps)[0]
    for new in (applied, loaded):
        torch.testing.assert_close(new.heatmaps.scale, result.heatmaps.scale)
        for index, found in enumerate(find_regions(new)):
            maps = new.heatmaps[index]
            surely = (maps > own[:, None, None] * 1.02), (maps < own[:, None, None] * 0.98)
            assert found.masks[surely[0]].all() and not found.masks[surely[1]].any()
    assert torch.equal(loaded.bank.components[2], result.components)


def test_a_network_with_other_weights_is_refused(group, tmp_path):
    files = [item.image for item in group.images[:2]]
    bank = deepff.discover(files, 1, size=128).bank
    other = replace(bank, sources=(replace(bank.sources[0], weights_digest="0" * 64),))
    with pytest.raises(InputError, match="differ; pass the run's weights"):
        deepff.apply(other, files)
    missing = replace(bank, sources=(replace(bank.sources[0], model="MyNetwork"),))
    with pytest.raises(InputError, match="this needs the network MyNetwork"):
        deepff.apply(missing, files)


def test_names_carry_over_to_what_a_bank_is_applied_to(group, tmp_path):
    files = [item.image for item in group.images[:4]]
    result = deepff.discover(files[:2], 2, size=224)
    result.save(tmp_path / "a")
    store = LabelStore(tmp_path / "a", result)
    labels = store.edit(0, lambda before: name_factor(before, 1, "Bär"))
    images = [str(file.path) for file in files[2:]]
    bank = str(tmp_path / "a/concepts.safetensors")
    outcome = CliRunner().invoke(app, ["apply", bank, *images, "--out", str(tmp_path / "b")])
    assert outcome.exit_code == 0, outcome.output
    carried = load_labels(tmp_path / "b", deepff.load(tmp_path / "b"))
    assert carried.parts == labels.parts and "Bär" in carried.parts.values()
    export = ["export", str(tmp_path / "b"), "--format", "png", "--labels"]
    assert CliRunner().invoke(app, export).exit_code == 0
    names = next((tmp_path / "b/export").rglob("labels.txt")).read_text("utf-8").splitlines()
    assert "Bär" in names


def test_the_command_applies_and_what_follows_works_on_it(group, tmp_path):
    files = [str(item.image.path) for item in group.images[:4]]
    run = CliRunner().invoke
    first = ["discover", *files[:2], "--recipe", "contrast", "--size", "224"]
    assert run(app, [*first, "--out", str(tmp_path / "a")]).exit_code == 0
    bank = tmp_path / "a/concepts.safetensors"
    outcome = run(app, ["apply", str(bank), *files[2:], "--out", str(tmp_path / "b")])
    assert outcome.exit_code == 0, outcome.output
    outcome = run(app, ["segment", str(tmp_path / "b"), "--object"])
    assert outcome.exit_code == 0, outcome.output
    assert len(list((tmp_path / "b/masks/k1/object").iterdir())) == 2


FIRST = "name the concepts.safetensors of a result first, and then the images"


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("none", f"none does not exist; {FIRST}"),
        ("photos", f"photos is a folder, not a concept bank; {FIRST}"),
        (
            "photos/a.jpg",
            f"a.jpg is not a concept bank of this version of deepff, or is damaged; {FIRST}",
        ),
        (
            "photos/empty",
            f"empty is not a concept bank of this version of deepff, or is damaged; {FIRST}",
        ),
        ("other.safetensors", f"of this version of deepff, or is damaged; {FIRST}"),
        ("result", "result is a folder, not a concept bank; the bank of that result is {bank}"),
        ("result/none", "none does not exist; the bank of that result is {bank}"),
        ("result/manifest.json", "or is damaged; the bank of that result is {bank}"),
        ("result/heatmaps/00000.safetensors", f"of this version of deepff, or is damaged; {FIRST}"),
        ("damaged/concepts.safetensors", "is damaged; run the command of its result again"),
    ],
)
def test_what_is_no_bank_gets_one_sentence(tmp_path, named, sentence):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "photos/a.jpg")
    (tmp_path / "photos/empty").touch()
    save_file({"w": torch.zeros(3)}, tmp_path / "other.safetensors")
    result_of(torch.ones(1, 2, 6, 8), ["a.jpg"], tmp_path / "photos").save(tmp_path / "result")
    shutil.copytree(tmp_path / "result", tmp_path / "damaged")
    (tmp_path / "damaged/concepts.safetensors").write_bytes(b"nothing")
    arguments = [tmp_path / named, tmp_path / "photos", "--out", tmp_path / "new"]
    outcome = CliRunner().invoke(app, ["apply", *map(str, arguments)])
    assert outcome.exit_code == 2
    assert sentence.format(bank=tmp_path / "result/concepts.safetensors") in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def parts(group) -> Result:
    return deepff.discover_parts([item.image for item in group.images[:5]], [2, 3], size=224)


def test_a_bank_of_parts_finds_them_in_its_own_images(group, parts, tmp_path):
    parts.bank.save(tmp_path / "bank.safetensors")
    files = [item.image for item in group.images[:5]]
    applied = deepff.apply(tmp_path / "bank.safetensors", files)
    assert applied.parts_of == parts.parts_of == "object"
    for k in (2, 3):
        pairs = zip(find_regions(parts, k), find_regions(applied, k), strict=True)
        agreement = [(own.labels == other.labels).float().mean() for own, other in pairs]
        assert min(agreement) > 0.999


def test_applied_parts_are_saved_refined_by_each_way_and_shown(group, parts, tmp_path):
    others = [item.image for item in group.images[5:8]]
    applied = deepff.apply(parts.bank, others)
    applied.save(tmp_path / "out")
    loaded = deepff.load(tmp_path / "out")
    assert loaded.names == [image.name for image in others]
    assert "relative error" not in (tmp_path / "out/report.html").read_text()
    for refine in ("classifier", "dense-crf", "none"):
        for own, again in zip(
            applied.regions(3, refine=refine), loaded.regions(3, refine=refine), strict=True
        ):
            assert torch.equal(own.labels, again.labels)
            # Each part is somewhere, and the object is not all of the image.
            assert 0 < (own.labels > 0).float().mean() < 0.9


def test_parts_without_a_classifier_cannot_be_applied(group, parts):
    bare = replace(parts.bank, classifiers={})
    with pytest.raises(InputError, match="no classifier that finds them in other images"):
        deepff.apply(bare, [group.images[0].image])
