"""Parts inside the object: planted parts, and values worked out by hand."""

from pathlib import Path

import pytest
import torch
from paper_networks import random_network
from torch import Tensor

from deepff.activations.activations import Activations, ImageRecord
from deepff.discovery.object_parts import (
    factorize_filled,
    factorize_inside,
    fills_frame,
    part_layer,
)
from deepff.errors import InputError
from deepff.layers.layer_map import map_layers
from deepff.networks.loading import load_backbone
from deepff.regions.dense_crf import crf_kernels, refined_parts
from deepff.regions.probabilities import part_probabilities, refined_masks


def as_activations(*images: Tensor) -> Activations:
    """Images (c, h, w) as one A."""
    records = [
        ImageRecord(f"{i}.jpg", Path(f"{i}.jpg"), (8 * x.shape[1], 8 * x.shape[2]), x.shape[1:])
        for i, x in enumerate(images)
    ]
    return Activations(records, [torch.cat([x.flatten(1).T for x in images]).float()])


def planted(labels: Tensor, seed: int) -> Tensor:
    """Activations (7, h, w): channel j fires on part j of 3, channels 3 and 4 on all of the object.

    Channels 5 and 6 fire on the background, label -1, more strongly than anything else. Every cell
    has a strength of its own, from 1 to 4.
    """
    generator = torch.Generator().manual_seed(seed)
    found = torch.zeros(7, *labels.shape)
    for part in range(3):
        found[part][labels == part] = 1.0
    found[3:5, labels >= 0] = 2.0
    found[5:, labels < 0] = 5.0
    strength = 1 + 3 * torch.rand(labels.shape, generator=generator)
    return found * strength + 0.05 * torch.rand(found.shape, generator=generator)


def two_objects() -> tuple[list[Tensor], Activations]:
    """Parts of 6, 4 and 2 cells on a wide object, then of 2, 4 and 9 on a tall one."""
    wide = torch.full((6, 8), -1)
    wide[1:4, 1:3], wide[1:3, 3:5], wide[4, 3:5] = 0, 1, 2
    tall = torch.full((9, 5), -1)
    tall[1, 1:3], tall[2:4, 1:3], tall[4:7, 1:4] = 0, 1, 2
    truth = [wide, tall]
    return truth, as_activations(*(planted(labels, seed) for seed, labels in enumerate(truth)))


def flat(labels: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in labels])


def assert_same_partition(found: Tensor, truth: Tensor) -> None:
    """The same groups, whatever their numbers."""
    pairs = set(zip(found.tolist(), truth.tolist(), strict=True))
    assert len(pairs) == len(set(found.tolist())) == len(set(truth.tolist()))


@pytest.mark.parametrize("seed", range(3))
def test_planted_parts_of_an_object_are_found_inside_it(seed):
    truth, activations = two_objects()
    labels = flat(truth)
    found, _ = factorize_inside(activations, labels >= 0, 3, seed)
    H = found.coefficients
    assert not H[labels < 0].any()
    torch.testing.assert_close(H[labels >= 0].sum(1), torch.ones(int((labels >= 0).sum())))
    assert_same_partition(H[labels >= 0].argmax(1), labels[labels >= 0])
    # The largest part comes first: 11, 8 and 8 cells.
    assert (H[labels == 2].argmax(1) == 0).all()
    assert found.relative_error < 0.2
    assert [maps.shape for maps in found.heatmaps] == [(3, 48, 64), (3, 72, 40)]


def test_a_seed_gives_the_same_to_the_bit_and_leaves_the_activations_alone():
    truth, activations = two_objects()
    before = activations.rows.clone()
    first, second = (factorize_inside(activations, flat(truth) >= 0, 3, 5)[0] for _ in range(2))
    assert torch.equal(first.coefficients, second.coefficients)
    assert torch.equal(first.components, second.components)
    assert torch.equal(activations.rows, before)


def test_the_parts_are_found_again_in_new_images():
    truth, activations = two_objects()
    found, space = factorize_inside(activations, flat(truth) >= 0, 3)
    torch.testing.assert_close(
        space.coefficients(activations, flat(truth) >= 0), found.coefficients
    )
    labels = torch.tensor([[2, 0, -1], [1, 2, 0]])
    new = space.coefficients(as_activations(planted(labels, 9)), labels.flatten() >= 0)
    names = [int(found.coefficients[flat(truth) == part].sum(0).argmax()) for part in range(3)]
    assert new.argmax(1)[labels.flatten() >= 0].tolist() == [
        names[part] for part in labels.flatten() if part >= 0
    ]
    assert new[2].tolist() == [0, 0, 0]


def test_results_do_not_depend_on_the_strength_of_activations_or_on_the_background():
    truth, activations = two_objects()
    cells = flat(truth) >= 0
    found, _ = factorize_inside(activations, cells, 3)
    scaled = Activations(activations.images, [1000 * activations.rows])
    other = activations.rows.clone()
    other[~cells] = 100.0
    for changed in (scaled, Activations(activations.images, [other])):
        again, _ = factorize_inside(changed, cells, 3)
        torch.testing.assert_close(again.coefficients, found.coefficients, rtol=1e-3, atol=1e-4)
        assert again.relative_error == pytest.approx(found.relative_error, abs=1e-4)


def test_cells_that_are_object_by_half_are_fitted_and_all_others_labelled():
    # The third cell of a kind of its own is hardly object: two parts are found without it.
    A = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.1, 1.0]]).T.reshape(3, 1, 3)
    shares = torch.tensor([0.5, 1.0, 0.2])
    found, space = factorize_inside(as_activations(A), shares, 2)
    torch.testing.assert_close(space.mean, torch.tensor([0.5, 0.5, 0.0]))
    assert space.components.tolist() in (
        [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]],
        [[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]],
    )
    assert found.coefficients.sum(1).tolist() == pytest.approx([1, 1, 1])
    off, _ = factorize_inside(as_activations(A), torch.tensor([0.5, 1.0, 0.0]), 2)
    assert off.coefficients[2].tolist() == [0, 0]


def test_an_image_without_object_has_no_parts_and_changes_nothing():
    truth, activations = two_objects()
    cells = flat(truth) >= 0
    found, _ = factorize_inside(activations, cells, 3)
    empty = planted(torch.full((4, 4), -1), 7)
    longer = Activations(
        [*activations.images, as_activations(empty).images[0]],
        [torch.cat([activations.rows, empty.flatten(1).T])],
    )
    again, _ = factorize_inside(longer, torch.cat([cells, torch.zeros(16, dtype=torch.bool)]), 3)
    torch.testing.assert_close(again.coefficients[:-16], found.coefficients)
    assert not again.coefficients[-16:].any()


def test_one_part_is_the_object_and_one_cell_a_part():
    truth, activations = two_objects()
    cells = flat(truth) >= 0
    one, _ = factorize_inside(activations, cells, 1)
    assert torch.equal(one.coefficients[:, 0], cells.float())
    single, _ = factorize_inside(as_activations(torch.rand(4, 1, 1) + 1), torch.ones(1), 1)
    assert single.coefficients.tolist() == [[1]]
    assert single.relative_error == 0


def test_equal_cells_share_their_parts():
    found, _ = factorize_inside(as_activations(torch.ones(4, 2, 3)), torch.ones(6), 2)
    torch.testing.assert_close(found.coefficients, torch.full((6, 2), 0.5))


def test_what_cannot_be_factorised_is_refused():
    _, activations = two_objects()
    n = len(activations.rows)
    with pytest.raises(InputError, match="has 2 cells in these images, too few for 3 parts"):
        factorize_inside(activations, torch.arange(n) < 2, 3)
    with pytest.raises(InputError, match="go down to -1"):
        factorize_inside(as_activations(-torch.ones(2, 3, 3)), torch.ones(9), 2)


def test_objects_that_fill_the_frame_are_parted_from_the_border():
    # The first part touches the border too, but is there less than everywhere.
    labels = torch.full((8, 8), -1)
    labels[1:7, 1:7] = 1
    labels[3:7, 2:6], labels[3:8, 1] = 2, 0
    activations = as_activations(planted(labels, 0), planted(labels.T.contiguous(), 1))
    truth = flat([labels, labels.T])
    found, space = factorize_filled(activations, 3)
    H = found.coefficients
    assert H.shape == (128, 3) and found.components.shape == (3, 7)
    assert (H[truth < 0].sum(1) < 0.1).all() and (H[truth >= 0].sum(1) > 0.9).all()
    assert_same_partition(H[truth >= 0].argmax(1), truth[truth >= 0])
    assert space.background is not None
    # channels 5 and 6 are the background's
    assert int(space.background.argmax()) >= 5
    torch.testing.assert_close(space.coefficients(activations), H)


def test_probabilities_are_shared_in_proportion_and_sum_to_the_objects():
    p = torch.tensor([[[1.0, 0.5, 0.2, 0.0]]])
    maps = torch.tensor([[[3.0, 1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0, 3.0]]])
    found = part_probabilities(p, maps)
    # 98 % of 3/4 and 1 % of the even share
    expected = torch.tensor([[[0.745, 0.25, 0.1, 0.0]], [[0.255, 0.25, 0.1, 0.0]]])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(0, keepdim=True), p)


def test_maps_are_upsampled_before_they_are_shared():
    found = part_probabilities(torch.ones(1, 1, 4), torch.tensor([[[1.0, 0.0]], [[0.0, 0.5]]]))
    # bilinear: 1, 3/4, 1/4, 0 and 0, 1/8, 3/8, 1/2
    share = torch.tensor([1.0, 6 / 7, 2 / 5, 0.0])
    torch.testing.assert_close(found[0, 0], 0.98 * share + 0.01)


@pytest.mark.parametrize("edge", [22, 26])
def test_refined_parts_meet_at_the_edge_of_the_image_and_keep_to_the_object(edge):
    # The maps meet at 24.
    image = torch.zeros(3, 32, 48)
    image[:, :, edge:] = 1.0
    p = torch.zeros(1, 32, 48)
    p[:, 4:28, 4:40] = 0.9
    maps = torch.zeros(2, 8, 12)
    maps[0, :, :6], maps[1, :, 6:] = 1.0, 1.0
    found = refined_parts(crf_kernels(image[None]), p, maps)
    torch.testing.assert_close(found.sum(0, keepdim=True), p)
    expected = torch.zeros(2, 32, 48, dtype=torch.bool)
    expected[0, 4:28, 4:edge] = expected[1, 4:28, edge:40] = True
    assert torch.equal(refined_masks(found), expected)


@pytest.mark.parametrize(
    ("model", "name", "channels"),
    [
        ("efficientnet_lite0", "blocks.6.0.bn2", 1152),
        ("vgg19", "conv5_4", 512),
        ("resnet101", "layer4", 2048),
    ],
)
def test_layers_of_parts(model, name, channels):
    network = random_network(model) if model in ("vgg19", "resnet101") else model
    layer = part_layer(map_layers(load_backbone(network), 128))
    assert (layer.name, layer.channels, layer.non_negative) == (name, channels, True)


def test_sets_without_separation_fill_the_frame():
    assert fills_frame(0.08) and not fills_frame(0.12)
    assert fills_frame(0.15, by_sign=True) and not fills_frame(0.16, by_sign=True)
