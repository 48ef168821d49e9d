"""Channel weights, fused layers and object maps, against values worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from paper_networks import random_network
from torch import Tensor, nn

from deepff.activations.activations import Activations, ImageRecord
from deepff.activations.extraction import extract_layers
from deepff.discovery.contrast import (
    BorderContrast,
    border_cells,
    border_contrast,
    contrast_layers,
    fuse,
    fused_object,
    object_factor,
    separation_warning,
)
from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.factorization import NMF
from deepff.images.image_files import find_images
from deepff.layers.layer_map import map_layers
from deepff.networks.loading import load_backbone
from deepff.regions.thresholds import masks, thresholds
from deepff.results.heatmaps import HeatMaps


def as_activations(*images: Tensor, blocks: int = 1) -> Activations:
    """Images (c, h, w) as one A, cut into nearly equal blocks."""
    records = [
        ImageRecord(f"{i}.jpg", Path(f"{i}.jpg"), (8 * x.shape[1], 8 * x.shape[2]), x.shape[1:])
        for i, x in enumerate(images)
    ]
    rows = torch.cat([x.flatten(1).T for x in images]).float()
    return Activations(records, list(rows.tensor_split(blocks)))


def random_activations(seed: int, grids: list[tuple[int, int]], channels: int = 12) -> Activations:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.rand(channels, *grid, generator=generator) for grid in grids]
    return as_activations(*images)


def ring(height: int, width: int, thickness: tuple[int, int]) -> Tensor:
    cells = torch.ones(height, width, dtype=torch.bool)
    cells[thickness[0] : height - thickness[0], thickness[1] : width - thickness[1]] = False
    return cells


@pytest.mark.parametrize(
    ("grid", "thickness"),
    [
        ((14, 14), (1, 1)),
        ((28, 28), (3, 3)),  # centres at 0.5, 1.5, 2.5 of 28 are below 0.1, 3.5 is not
        ((5, 5), (1, 1)),
        ((10, 14), (1, 1)),
        ((14, 28), (1, 3)),
        ((28, 21), (3, 2)),  # 1.5 / 21 = 0.07, 2.5 / 21 = 0.12
        ((56, 28), (6, 3)),  # 5.5 / 56 = 0.098, 6.5 / 56 = 0.116
        ((3, 40), (1, 4)),
    ],
)
def test_border_is_a_ring_of_a_tenth_of_each_side_and_at_least_one_cell(grid, thickness):
    assert torch.equal(border_cells(grid), ring(*grid, thickness))


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (1, 9), (7, 2)])
def test_grids_of_one_or_two_cells_are_all_border(grid):
    assert border_cells(grid).all()


def test_contrast_worked_out_by_hand():
    border = border_cells((5, 5))
    channels = torch.zeros(4, 5, 5)
    channels[0][~border] = 3.0  # only inside
    channels[1][border] = 3.0  # only on the border
    channels[2] = 2.0  # everywhere alike
    channels[3][~border], channels[3][border] = 3.0, 1.0
    found = border_contrast(as_activations(channels))
    torch.testing.assert_close(found.inside, torch.tensor([3.0, 0.0, 2.0, 3.0]))
    torch.testing.assert_close(found.border, torch.tensor([0.0, 3.0, 2.0, 1.0]))
    g = torch.tensor([3 / 3.001, 0.0, 0.0, 2 / 4.001])
    torch.testing.assert_close(found.contrast, g)
    torch.testing.assert_close(found.weights, g**2)
    assert found.separation == pytest.approx((3 / 3.001 + 2 / 4.001) / 4)


def test_means_are_over_the_cells_of_the_whole_set_portrait_and_landscape():
    # 3 × 5: 3 cells inside, 12 on the border; 6 × 4: 8 inside, 16 on the border.
    landscape, portrait = torch.full((1, 3, 5), 1.0), torch.full((1, 6, 4), 2.0)
    landscape[0][~border_cells((3, 5))] = 10.0
    portrait[0][~border_cells((6, 4))] = 20.0
    found = border_contrast(as_activations(landscape, portrait))
    assert found.inside.item() == pytest.approx((3 * 10 + 8 * 20) / 11)
    assert found.border.item() == pytest.approx((12 * 1 + 16 * 2) / 28)


def test_a_channel_that_hardly_fires_weighs_little():
    channels = torch.zeros(1, 5, 5)
    channels[0][~border_cells((5, 5))] = 1e-5
    g = border_contrast(as_activations(channels)).contrast
    assert g.item() == pytest.approx(1e-5 / 1.01e-3, rel=1e-4)


def test_results_do_not_depend_on_the_scale_of_the_activations():
    small = random_activations(0, [(6, 8), (8, 6)])
    large = replace(small, blocks=[1000 * block for block in small.blocks])
    torch.testing.assert_close(
        border_contrast(large).weights, border_contrast(small).weights, rtol=0.02, atol=1e-4
    )
    weights = torch.linspace(0, 1, 12)
    a, b = object_factor(small, weights), object_factor(large, weights)
    torch.testing.assert_close(b.components, a.components)
    torch.testing.assert_close(b.coefficients, 1000 * a.coefficients)
    fused = [fused_object([x, x], [weights, weights]).coefficients for x in (small, large)]
    torch.testing.assert_close(fused[0], fused[1])


def test_results_do_not_depend_on_how_the_rows_are_split():
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(12, *grid, generator=generator) for grid in [(5, 7), (9, 4)]]
    whole, split = as_activations(*images), as_activations(*images, blocks=4)
    weights = border_contrast(whole).weights
    assert torch.equal(border_contrast(split).weights, weights)
    assert torch.equal(
        object_factor(split, weights).coefficients, object_factor(whole, weights).coefficients
    )


def test_activations_that_no_contrast_can_be_had_of_are_refused():
    with pytest.raises(InputError, match="every cell lies on the border"):
        border_contrast(random_activations(0, [(2, 2), (1, 5)]))
    with pytest.raises(InputError, match=r"go down to -0\.5"):
        border_contrast(as_activations(torch.full((3, 5, 5), -0.5)))


@pytest.mark.parametrize("seed", range(3))
def test_object_factor_is_the_non_negative_factorization_with_one_factor(seed):
    activations = random_activations(seed, [(6, 8), (8, 5)])
    weights = torch.rand(12, generator=torch.Generator().manual_seed(seed))
    found = object_factor(activations, weights)
    reference = NMF(1, random_state=0, tol=1e-9)
    H = reference.fit_transform(activations.rows * weights)
    torch.testing.assert_close(found.components, reference.components_, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.coefficients, H, rtol=1e-3, atol=1e-4)
    assert found.relative_error == pytest.approx(reference.relative_err_, abs=1e-5)
    singular = torch.linalg.svdvals(activations.rows * weights)
    expected = math.sqrt(1 - float(singular[0] ** 2 / singular.square().sum()))
    assert found.relative_error == pytest.approx(expected, abs=1e-5)


def test_object_factor_finds_the_planted_factor_that_weights_leave():
    h = torch.rand(30, generator=torch.Generator().manual_seed(0))
    background = torch.rand(30, generator=torch.Generator().manual_seed(1))
    A = torch.zeros(4, 30)
    A[0], A[1] = 3 * h, 4 * h
    A[2:] = 10 * background
    activations = as_activations(A.reshape(4, 5, 6))
    found = object_factor(activations, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(found.components, torch.tensor([[0.6, 0.8, 0.0, 0.0]]))
    torch.testing.assert_close(found.coefficients[:, 0], 5 * h)
    assert found.relative_error == pytest.approx(0, abs=1e-3)


def test_no_channel_left_gives_an_empty_map_and_empty_masks():
    activations = random_activations(0, [(5, 5)])
    found = object_factor(activations, torch.zeros(12))
    assert not found.coefficients.any() and not found.components.any()
    fused = fuse([found.heatmaps, found.heatmaps])
    assert not masks(fused[0], thresholds(fused, "otsu-image")[0]).any()


def one_factor(*grids: list[list[float]], size: tuple[int, int] = (8, 8)) -> HeatMaps:
    tensors = [torch.tensor(grid) for grid in grids]
    return HeatMaps(
        torch.cat([x.flatten() for x in tensors])[:, None],
        [(x.shape[0], x.shape[1]) for x in tensors],
        [size] * len(tensors),
    )


def test_fused_maps_are_the_geometric_mean_at_the_finer_grid():
    coarse = one_factor([[0.2, 1.0]])
    fine = one_factor([[1.0, 1.0, 0.25, 0.0]])
    # bilinear, align_corners=False: 0.2, 0.4, 0.8, 1
    expected = torch.tensor([0.2, 0.4, 0.8 * 0.25, 0.0]).sqrt()
    for order in ([coarse, fine], [fine, coarse]):
        fused = fuse(order)
        assert fused.grids == [(1, 4)] and fused.image_sizes == [(8, 8)]
        torch.testing.assert_close(fused.coefficients[:, 0], expected)


def test_fusing_a_map_with_itself_or_alone_gives_it_back():
    maps = one_factor([[0.0, 0.25], [0.75, 1.0]], [[0.5, 0.5]])
    for n in (1, 2, 3):
        torch.testing.assert_close(fuse([maps] * n).coefficients, maps.coefficients)


def test_three_layers_fuse_by_the_cube_root():
    fused = fuse([one_factor([[1.0, v]]) for v in (0.1, 0.2, 0.4)])
    assert fused.coefficients[1, 0].item() == pytest.approx(0.008 ** (1 / 3))


def test_the_fused_object_is_each_layers_best_factor_made_comparable_and_fused():
    """W is scaled so that it alone, without the set, gives maps with maximum 1."""
    layers = [random_activations(seed, [(6, 8), (4, 6)]) for seed in (0, 1)]
    weights = [torch.linspace(0, 1, 12), torch.linspace(1, 0, 12)]
    found = fused_object(layers, weights)
    product = torch.ones(len(found.coefficients))
    for activations, own, w in zip(layers, weights, found.components.split(12, dim=1), strict=True):
        h = activations.rows @ (own * w[0]) / w.square().sum()
        assert h.max().item() == pytest.approx(1)
        alone = object_factor(activations, own).coefficients[:, 0]
        torch.testing.assert_close(h, alone / alone.max())
        product *= h
    torch.testing.assert_close(found.coefficients[:, 0], product.sqrt())


def test_a_set_without_contrast_is_warned_of():
    level = torch.ones(3)
    assert separation_warning(BorderContrast(2 * level, level).separation) is None
    message = separation_warning(BorderContrast(1.1 * level, level).separation)
    assert message is not None and "only 0.05" in message  # 0.1 / 2.101


@pytest.mark.parametrize(
    ("model", "finer", "coarser"),
    [
        ("efficientnet_lite0", ("blocks.5.0.bn1", 672, 16), ("blocks.6.0.bn1", 1152, 32)),
        ("vgg19", ("conv4_4", 512, 8), ("conv5_4", 512, 16)),
        ("resnet101", ("layer3", 1024, 16), ("layer4", 2048, 32)),
    ],
)
def test_layers_chosen_for_networks(model, finer, coarser):
    network = random_network(model) if model in ("vgg19", "resnet101") else model
    found = contrast_layers(map_layers(load_backbone(network), 128))
    assert [(layer.name, layer.channels, layer.stride) for layer in found] == [finer, coarser]
    assert all(layer.non_negative for layer in found)


def test_the_layers_grids_at_the_default_size():
    finer, coarser = contrast_layers(map_layers(load_backbone()))
    assert (finer.grid, coarser.grid) == ((28, 28), (14, 14))


def flat_network(*strides: int) -> nn.Sequential:
    channels = 4
    modules: list[nn.Module] = [nn.Conv2d(3, channels, 1), nn.ReLU()]
    for stride in strides:
        modules += [nn.Conv2d(channels, channels, 3, stride, padding=1), nn.ReLU()]
    return nn.Sequential(*modules)


def test_layers_of_a_network_without_stages():
    found = contrast_layers(map_layers(load_backbone(flat_network(2, 1, 2, 1)), 64))
    assert [(layer.path, layer.stride) for layer in found] == [("5", 2), ("9", 4)]


def test_maps_of_depthwise_convolutions_are_passed_over():
    network = flat_network(2, 2)
    network.append(nn.Conv2d(4, 4, 3, padding=1, groups=4)).append(nn.ReLU())
    found = contrast_layers(map_layers(load_backbone(network), 64))
    assert [(layer.path, layer.stride) for layer in found] == [("3", 2), ("5", 4)]


def test_a_network_of_one_stride_has_its_default_layer_alone():
    found = contrast_layers(map_layers(load_backbone(flat_network(1, 1)), 64))
    assert [(layer.path, layer.stride) for layer in found] == [("5", 1)]


def test_signed_layers_are_taken_by_sign():
    network = timm.create_model("convnext_atto", depths=(1, 1, 1, 1))
    found = contrast_layers(map_layers(load_backbone(network), 64))
    assert [(layer.path, layer.stride, layer.channels) for layer in found] == [
        ("stages.3.downsample.0:signs", 16, 320),
        ("stages:signs", 32, 640),
    ]
    assert all(layer.non_negative for layer in found)


def test_what_is_negative_on_the_object_is_found():
    """A channel that is −1 on the object and 0 elsewhere, and one that is 1 everywhere."""
    cells = torch.zeros(8, 8)
    cells[2:6, 2:6] = 1
    signed = torch.stack([-cells, torch.ones(8, 8)])
    weights = border_contrast(as_activations(torch.cat([signed.relu(), (-signed).relu()]))).weights
    # A ring of one cell is border: μ_in = 16/36 of the negative part.
    assert weights.tolist() == pytest.approx([0, 0, (16 / 36 / (16 / 36 + 1e-3)) ** 2, 0])


def object_quality(maps: HeatMaps, method: str, truth: GroundTruthSet) -> float:
    limits = thresholds(maps, method)
    pairs = [(masks(maps[i], limits[i]), x.labels()) for i, x in enumerate(truth.images)]
    return float(iou(count_overlaps(pairs, 1))[0, 1])


def test_weights_and_two_layers_beat_the_papers_recipe_on_real_images(data_root):
    (truth,) = load_icoseg(data_root / "icoseg", ["033"])
    files = [item.image for item in truth.images]
    backbone = load_backbone()
    (head,), _ = extract_layers(files, backbone, [map_layers(backbone).resolve()])
    paper = object_factor(head, torch.ones(head.rows.shape[1])).heatmaps
    layers, _ = extract_layers(files, backbone, contrast_layers(map_layers(backbone)))
    weights = [border_contrast(activations).weights for activations in layers]
    contrast = fused_object(layers, weights).heatmaps
    # 0.49 and 0.79 when measured.
    assert object_quality(paper, "percentile", truth) < 0.55
    assert object_quality(contrast, "otsu-image", truth) > 0.74


def test_objects_that_fill_the_frame_are_warned_of(cats_filling_the_frame):
    photos, crops = cats_filling_the_frame
    backbone = load_backbone()
    _, coarser = contrast_layers(map_layers(backbone))
    warnings = []
    for files in (find_images(photos), find_images(crops)):
        (activations,), _ = extract_layers(files, backbone, [coarser])
        warnings.append(separation_warning(border_contrast(activations).separation))
    assert warnings[0] is None and warnings[1] is not None
