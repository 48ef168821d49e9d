"""Names of factors, on real groups with a trained network, and class scores against its logits."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import deepff
from deepff.errors import InputError
from deepff.meaning.class_names import name_factors, scores_of_regions, standing_out
from deepff.meaning.open_network import network_input
from deepff.networks.class_labels import read_labels
from deepff.regions.components import named_pieces
from deepff.result import Result
from deepff.results.factorization import FactorClasses, Factorization
from deepff.results.heatmaps import HeatMaps


def full_of_one(result: Result, index: int, rows: Tensor) -> Result:
    """The result of one image with one factor, which is all of A: its mean, everywhere."""
    image = result.images[index]
    heatmaps = HeatMaps.of_images(torch.ones(image.n_cells, 1), [image])
    result.images = [image]
    result.factorizations = {1: Factorization(rows.mean(0, keepdim=True), heatmaps, 0.0, 1)}
    return result


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("021", "African elephant"),
        ("015", "sports car"),
        ("036", "balance beam"),
    ],
)
def test_factors_of_real_groups_are_named_by_what_the_images_show(group, number, name):
    result = deepff.discover(group(number, 5), 2)
    assert name in result.factor_names
    assert set(result.factor_names) <= {name, None}


def test_plain_textures_and_noise_get_no_names():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:224, :224]
    textures = [
        rng.integers(0, 256, (224, 224, 3)),
        np.repeat(rng.integers(0, 256, (28, 28, 3)), 8, 0).repeat(8, 1),
        np.stack([x, y, x + y], -1) / 2,
        np.repeat(((x // 28 + y // 28) % 2 * 200)[..., None], 3, 2),
        np.repeat((x // 16 % 2 * 120 + 60)[..., None], 3, 2),
    ]
    result = deepff.discover([t.astype(np.uint8) for t in textures], [2, 4], size=224)
    assert result.names_of(2) + result.names_of(4) == [None] * 6
    assert result.unnamed is None  # they were looked for


def test_scores_of_a_factor_that_is_all_there_is_are_the_logits_of_the_network(group):
    result = deepff.discover(group("036", 1), 1)
    result = full_of_one(result, 0, result.activations.image_rows[0])
    (opened,) = result.opened
    with torch.no_grad():
        logits = opened.backbone.network(network_input(result, opened, 0))
    assert (result.class_scores() - logits).abs().max() < 1e-4
    assert result.classes().best(1)[0][0] == (
        "balance beam",
        pytest.approx(float(logits.softmax(1).max()), abs=1e-4),
    )


def test_scores_are_the_classifier_applied_to_the_components_at_their_strength(group):
    """pytorch-grad-cam labels a concept by classifier(w), whatever the length of w is; here w is as
    long as the factor is strong, b + s (classifier(w) − b), with s by hand."""
    result = deepff.discover(group("028", 2), 3)
    classifier = result.opened[0].backbone.network.classifier
    H, W = result.coefficients, result.components
    strength = [column[column >= column.max() / 2].mean() for column in H.T]
    with torch.no_grad():
        theirs, b = classifier(W), classifier.bias
        expected = b + torch.stack(strength)[:, None] * (theirs - b)
    assert (result.class_scores() - expected).abs().max() < 1e-4


class Squares(nn.Module):
    """The squares of the means of three channels, weighted: not linear in them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()
        self.head = nn.Linear(3, 2, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean((2, 3)) ** 2)


def test_scores_by_taking_a_factor_out_follow_the_formula():
    """Of A = h w with h 1 on half of the cells: T(0) + 1 / mean(h) · (T(h w) − T(0)).

    The image is red on its left half and black on the right, and so is A: w = (1, 0, 0), and with
    the mean of h at 1/2 the scores are b + 2 · (1/2)² · the head's weights of the first channel.
    """
    network = Squares()
    red = np.zeros((8, 8, 3), np.uint8)
    red[:, :4, 0] = 255
    backbone = deepff.load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1), labels=["a", "b"])
    result = deepff.discover([red], 1, model=backbone, layer="layer", size=8)
    expected = network.head.bias + network.head.weight[:, 0] / 2
    torch.testing.assert_close(result.class_scores()[0], expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [["a", "b"], None, ["of three", "classes", "not two"]])
@pytest.mark.parametrize("is_open", [True, False])
def test_reading_a_result_does_not_change_it(labels, is_open, tmp_path):
    backbone = deepff.load_backbone(Squares(), labels=labels, device="cpu")
    photo = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    result = deepff.discover([photo], 2, model=backbone, layer="layer", size=16)
    assert (result.unnamed is None) == (labels is None or len(labels) == 2)
    if not is_open:
        result.opened = ()
        result.factorizations = {2: replace(result.factorization(), classes=None)}
    before = (dict(result.factorizations), result.unnamed, result.opened, result.activations)
    repr(result), result.factor_names, result.names_of(2), result._repr_html_(), result.bank
    result.plot(), result.to_dataframe(), result.save(tmp_path / "result")
    after = (dict(result.factorizations), result.unnamed, result.opened, result.activations)
    assert before[0].keys() == after[0].keys() and result.importances == {}
    assert all(before[0][k] is after[0][k] for k in before[0])
    assert all(one is other for one, other in zip(before[1:], after[1:], strict=True))


def test_names_are_kept_when_they_are_asked_for():
    """The data comes from :func:`name_factors`, which leaves the run as it is."""
    labels = ["a", "b"]
    backbone = deepff.load_backbone(Squares(), labels=labels, device="cpu")
    photo = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    result = deepff.discover([photo], 1, model=backbone, layer="layer", size=16)
    expected = result.factorization().classes
    result.factorizations = {1: replace(result.factorization(), classes=None)}
    names = name_factors(result)
    assert result.factorization().classes is None
    assert names.classes[1].names == expected.names and names.unnamed is None
    assert result.name_factors() == [*expected.names] == result.factor_names
    assert torch.equal(result.factorization().classes.scores, expected.scores)


def test_a_layer_before_the_last_is_named_by_what_falls_without_the_factor(group):
    result = deepff.discover(group("041", 3), 2, layer="blocks.6.0.bn1")
    assert "balloon" in result.factor_names
    assert set(result.factor_names) <= {"balloon", None}


def test_a_name_needs_both_a_probability_and_to_stand_out():
    labels = [f"class {i}" for i in range(1000)]
    sure = torch.zeros(1, 1000)
    sure[0, 7] = 20.0
    half = sure.clone()
    half[0, 8] = 20.5  # the two share the probability: 0.62 and 0.38
    both = torch.cat([sure, half, half - torch.eye(1000)[8], torch.zeros(1, 1000)])
    assert standing_out(both, labels) == ["class 7", "class 8", "class 7", None]
    noisy = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)) * 5
    noisy[0, 3] = 30.0  # 6 deviations above the rest, and nearly sure
    assert float(noisy.softmax(1)[0, 3]) > 0.9
    assert standing_out(noisy, labels) == [None]
    assert standing_out(torch.tensor([[0.0, 3.0], [0.0, 0.0]]), ["a", "b"])[0] == "b"


def test_of_two_classes_a_factor_is_what_more_of_the_set_is():
    """A factor that is a beaver by 0.8 and a bear by 0.2, where half of the images are bears and a
    twentieth are beavers: 0.2 · 0.5 > 0.8 · 0.05."""
    scores = torch.tensor([[0.8, 0.2, 1e-4], [0.8, 0.1, 0.1], [0.3, 0.3, 0.3]]).log()
    labels = ["beaver", "bear", "elephant"]
    assert standing_out(scores, labels) == ["beaver", "beaver", None]
    shares = torch.tensor([0.05, 0.5, 0.45])
    assert standing_out(scores, labels, shares) == ["bear", "bear", None]
    assert standing_out(scores, labels, torch.tensor([0.2, 0.5, 0.3])) == ["beaver", "beaver", None]


@pytest.mark.parametrize("n", [7, pytest.param(19, marks=pytest.mark.slow)])
def test_of_bears_and_elephants_every_image_is_given_its_class(group, n):
    """By suggestions alone: each piece of the object has the name of the factor that is strongest
    on it; the class of an image is that of most of its pixels."""
    bears, elephants = group("002", n), group("021", n)
    result = deepff.discover([*bears, *elephants], 6)
    names = result.factor_names
    masks = [regions.masks.any(0).numpy() for regions in deepff.find_object(result).regions()]
    named = [j for j, name in enumerate(names) if name is not None]
    found = []
    for i, mask in enumerate(masks):
        pieces = named_pieces(mask, result.heatmaps.normalized(i), named)
        found.append(names[np.bincount(pieces.ravel())[1:].argmax()])
    kinds = {"brown bear": "bear", "American black bear": "bear", "African elephant": "elephant"}
    assert [kinds.get(name) for name in found] == ["bear"] * len(bears) + ["elephant"] * len(
        elephants
    )


def test_names_stay_with_the_result_and_with_its_bank(group, tmp_path):
    balloons = group("041", 2)
    result = deepff.discover(balloons, [1, 2])
    result.save(tmp_path / "result")
    manifest = json.loads((tmp_path / "result/manifest.json").read_text())
    assert manifest["factor_names"]["2"] == result.factor_names
    loaded = deepff.load(tmp_path / "result")
    assert loaded.factor_names == result.factor_names
    assert torch.equal(loaded.class_scores(1), result.class_scores(1))

    new = deepff.apply(tmp_path / "result/concepts.safetensors", group("021", 1))
    assert "balloon" in new.factor_names
    assert torch.equal(new.class_scores(), result.class_scores())


def test_without_its_head_a_network_names_nothing_and_says_why(group, tmp_path):
    state = deepff.load_backbone().network.state_dict()
    file = tmp_path / "trunk.safetensors"
    save_file({k: v for k, v in state.items() if not k.startswith("classifier")}, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backbone = deepff.load_backbone(weights=file)
    result = deepff.discover(group("036", 1), 2, model=backbone)
    assert result.factor_names == [None, None]
    assert "'classifier.weight' is not in the file" in result.unnamed
    with pytest.raises(InputError, match="weights that include the head"):
        result.class_scores()


def test_random_weights_give_no_names_and_unknown_classes_their_numbers():
    images = [np.full((32, 32, 3), value, np.uint8) for value in (20, 200)]
    for image in images:
        image[:8] = 90
    random = deepff.load_backbone("resnet18", pretrained=False)
    result = deepff.discover(images, 1, model=random, layer="layer4", size=64)
    assert result.factor_names == [None]
    assert "random" in result.unnamed

    own = deepff.load_backbone(Squares())
    result = deepff.discover(images, 1, model=own, layer=own.network.layer, size=32)
    assert result.layer == "layer" and result.unnamed is None
    assert result.classes().labels == ("output 0", "output 1")
    assert result.importance(classes=[1, "output 0"]).labels == ("output 1", "output 0")
    own.labels = ("one",)
    (layer,) = (each for each in deepff.list_layers(own, 32) if each.name == "layer")
    result = deepff.discover(images, 1, model=own, layer=layer, size=32)
    with pytest.raises(InputError, match="1 labels are given, but Squares has 2"):
        result.class_scores()


def test_scores_are_the_heads_for_the_mean_of_a_over_the_region(linear):
    """A region is the left half, red in one image and green in the other: (1/2, 1/2, 0), whatever
    is right of it; where there is no region, NaN."""
    images = np.full((2, 32, 32, 3), 255, np.uint8)
    images[0, :, :16] = (255, 0, 0)
    images[1, :, :16] = (0, 255, 0)
    backbone = deepff.load_backbone(
        linear, mean=(0, 0, 0), std=(1, 1, 1), labels=["a", "b"], device="cpu"
    )
    result = deepff.discover(list(images), 1, model=backbone, layer="layer", size=32)
    left = torch.zeros(2, 32, 32, 2)
    left[:, :, :16, 0] = 1
    heatmaps = HeatMaps.of_images(left.flatten(0, 2), result.images)
    result.factorizations = {2: Factorization(torch.zeros(2, 3), heatmaps, 0.0, 1)}
    result.recipe = "contrast"
    with torch.no_grad():
        found = scores_of_regions(result, result.opened[0], result.factorizations, False)[2]
        expected = backbone.network.head(torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    assert found[1].isnan().all()
    assert result.classes().names[1] is None


def test_the_object_is_named_and_its_parts_are_not(group, tmp_path: Path):
    parts = deepff.discover_parts(group("021", 5), 2)
    assert parts.object.factor_names == ["African elephant"]
    assert parts.factor_names == [None, None]
    assert "parts of the object" in parts.unnamed
    parts.save(tmp_path / "parts")
    manifest = json.loads((tmp_path / "parts/object/manifest.json").read_text())
    assert manifest["factor_names"] == {"1": ["African elephant"]}
    assert deepff.load(tmp_path / "parts").object.factor_names == ["African elephant"]


def test_an_object_of_no_class_has_no_name(group):
    """ImageNet has no kites."""
    result = deepff.discover(group("033", 5), recipe="contrast")
    assert (result.factor_names, result.unnamed) == ([None], None)


@pytest.mark.parametrize(
    ("pool", "layer", "is_read"),
    [
        ("token", "blocks.1", False),
        ("token", "norm", False),
        ("token", "blocks.0", True),
        ("avg", "blocks.1", True),
    ],
)
def test_where_only_the_class_token_is_read_factors_have_no_names(pool, layer, is_read):
    """The head of a vision transformer reads the class token: after the last block the patches'
    tokens are read by nothing, and the scores of every factor would be those of one image."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    shape = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}
    network = timm.create_model(
        "vit_tiny_patch16_224", num_classes=3, global_pool=pool, fc_norm=False, **shape
    )
    backbone = deepff.load_backbone(network, labels=["a", "b", "c"], device="cpu")
    images = [np.random.default_rng(i).integers(0, 256, (64, 64, 3), np.uint8) for i in (0, 1)]
    result = deepff.discover(images, 2, model=backbone, layer=layer, method="semi-nmf", size=64)
    if is_read:
        first, second = result.class_scores()
        assert (first - second).abs().max() > 1e-3
        assert result.importance().falls.abs().max() > 1e-3
        return
    assert result.factor_names == [None, None]
    assert f"the part of VisionTransformer after layer {layer} does not use its map" in (
        result.unnamed
    )
    with pytest.raises(InputError, match="choose an earlier layer"):
        result.class_scores()
    result.factorizations[2] = replace(
        result.factorizations[2],
        classes=FactorClasses(("a", "b", "c"), torch.zeros(2, 3), (None, None)),
    )
    with pytest.raises(InputError, match="does not use its map"):
        result.importance()


def test_labels_are_read_one_a_line(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_text("cat\n black dog \n\n")
    assert read_labels(file) == ("cat", "black dog")
    file.write_text("cat\n\ndog\n")
    with pytest.raises(InputError, match="without empty lines"):
        read_labels(file)
    with pytest.raises(InputError, match="can't be read"):
        read_labels(tmp_path / "none.txt")
