"""Metrics on cases worked out by hand, and against other implementations."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import jaccard_score, normalized_mutual_info_score

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import with_parts
from deepff.evaluation.metrics import (
    Overlaps,
    associated_iou,
    association,
    best_iou,
    corloc,
    count_overlaps,
    coverage,
    factor_quality,
    iou,
    normalized_mutual_information,
)

# Two images of 1 × 10 and 2 × 3 pixels, labels 0 (background), 1, 2 (parts), and the two that are
# no column: 254 (object without a part) and 255 (not judged).
LABELS = [
    np.array([[0, 0, 0, 1, 1, 1, 1, 2, 254, 255]], np.uint8),
    np.array([[2, 2, 0], [1, 255, 0]], np.uint8),
]
# Three masks that overlap: the third is in both others.
MASKS = [
    np.array(
        [
            [[0, 0, 1, 1, 1, 1, 0, 0, 1, 1]],
            [[1, 1, 0, 0, 0, 0, 0, 1, 0, 0]],
            [[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]],
        ],
        bool,
    ),
    np.array([[[0, 0, 0], [1, 1, 0]], [[1, 1, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]], bool),
]
# Counted by eye. Mask 0: image 1 one background pixel, three of part 1, one of the object (254) and
# one not judged; image 2 one of part 1 and one not judged. So 1 + 3 + 1 + 1 = 6 judged pixels.
# Mask 1: image 1 two of the background, one of part 2; image 2 two of each.
INTERSECTION = [[1, 4, 0], [4, 0, 3], [0, 1, 0]]
PREDICTED = [6, 7, 1]
TRUTH = [5, 5, 3]


@pytest.fixture
def overlaps() -> Overlaps:
    return count_overlaps(zip(MASKS, LABELS, strict=True), n_parts=2)


def test_counts_are_summed_over_the_set(overlaps: Overlaps) -> None:
    assert overlaps.intersection.tolist() == INTERSECTION
    assert overlaps.predicted.tolist() == PREDICTED
    assert overlaps.truth.tolist() == TRUTH


def test_counts_of_tensors_are_those_of_arrays(overlaps: Overlaps) -> None:
    tensors = [torch.from_numpy(mask) for mask in MASKS]

    counted = count_overlaps(zip(tensors, LABELS, strict=True), n_parts=2)

    assert counted.intersection.tolist() == overlaps.intersection.tolist()


def test_coverage_is_the_share_of_the_part(overlaps: Overlaps) -> None:
    assert coverage(overlaps).tolist() == [[1 / 5, 4 / 5, 0], [4 / 5, 0, 1], [0, 1 / 5, 0]]


def test_iou_is_over_the_whole_set(overlaps: Overlaps) -> None:
    # Mask 0 and part 1: 4 shared of 6 + 5 - 4 = 7. The mean over the images would be (3/6 + 1/1)/2.
    expected = [
        [1 / 10, 4 / 7, 0],
        [4 / 8, 0, 3 / 7],
        [0, 1 / 5, 0],
    ]
    np.testing.assert_allclose(iou(overlaps), expected, rtol=1e-15)


def test_parts_belong_to_the_mask_that_covers_more_than_half(overlaps: Overlaps) -> None:
    assert association(overlaps).tolist() == [
        [False, True, False],
        [True, False, True],
        [False, False, False],
    ]


def test_a_part_that_is_covered_by_just_half_does_not_belong() -> None:
    labels = np.array([[1, 1, 2, 2]], np.uint8)
    mask = np.array([[[1, 0, 1, 1]]], bool)

    assert association(count_overlaps([(mask, labels)], 2)).tolist() == [[False, False, True]]


def test_associated_iou_is_with_all_parts_of_a_mask_together(overlaps: Overlaps) -> None:
    # Mask 1 has the background and part 2: 7 shared of 7 + (5 + 3) - 7 = 8.
    # Mask 2 has no part.
    np.testing.assert_allclose(
        associated_iou(overlaps, association(overlaps)), [4 / 7, 7 / 8, 0], rtol=1e-15
    )


def test_factor_quality_takes_the_best_part_and_never_the_background(overlaps: Overlaps) -> None:
    # Mask 1 fits the background best (4/8), but that is not a part: 3/7.
    assert factor_quality(overlaps) == pytest.approx((4 / 7 + 3 / 7 + 1 / 5) / 3, rel=1e-15)


def test_a_mask_of_the_background_scores_nothing() -> None:
    labels = np.array([[0, 0, 1, 1]], np.uint8)
    masks = np.stack([labels == 0, labels == 1])

    assert factor_quality(count_overlaps([(masks, labels)], 1)) == 0.5


def test_part_that_no_image_shows_and_mask_that_is_empty_count_as_zero() -> None:
    labels = np.array([[0, 1]], np.uint8)
    masks = np.array([[[0, 0]], [[0, 1]]], bool)

    overlaps = count_overlaps([(masks, labels)], n_parts=2)

    assert coverage(overlaps).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert iou(overlaps).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert associated_iou(overlaps, association(overlaps)).tolist() == [0, 1]
    assert factor_quality(overlaps) == 0.5


def test_counting_takes_images_one_at_a_time() -> None:
    alive = 0

    class Masks(np.ndarray):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal alive
        for _ in range(20):
            masks = np.ones((1, 2, 2), bool).view(Masks)
            alive += 1
            assert alive <= 2
            yield masks, np.ones((2, 2), np.uint8)

    assert count_overlaps(pairs(), 1).intersection.tolist() == [[0, 80]]


def test_counting_refuses_what_does_not_fit() -> None:
    labels = np.array([[0, 3]], np.uint8)
    masks = np.ones((2, 1, 2), bool)

    with pytest.raises(InputError, match="label above 2"):
        count_overlaps([(masks, labels)], 2)


# Two images of 1 × 8 and 1 × 4 pixels. The head (label 1) is three pixels of each, the ear (2) two:
# both on the first image's head and one on the second's. The body (3) is two of the first image.
HEAD_AND_EAR = 256 * 1 + 2
OVERLAPPING = [
    np.array([[HEAD_AND_EAR, HEAD_AND_EAR, 1, 3, 3, 0, 254, 255]], np.uint16),
    np.array([[1, HEAD_AND_EAR, 1, 2]], np.uint16),
]


def test_parts_that_overlap_are_counted_with_all_their_pixels() -> None:
    # Mask 0 is the head and a pixel of the body; mask 1 the first image's ear and what it lacks.
    masks = [
        np.array([[[1, 1, 1, 1, 0, 0, 0, 1]], [[1, 1, 0, 0, 0, 1, 1, 0]]], bool),
        np.array([[[1, 1, 1, 0]], [[0, 0, 0, 0]]], bool),
    ]

    overlaps = count_overlaps(zip(masks, OVERLAPPING, strict=True), n_parts=3)

    assert overlaps.truth.tolist() == [1, 6, 4, 2]
    assert overlaps.predicted.tolist() == [7, 4]
    assert overlaps.intersection.tolist() == [[0, 6, 3, 1], [1, 2, 2, 0]]
    assert coverage(overlaps).tolist() == [[0, 1, 3 / 4, 1 / 2], [1, 2 / 6, 2 / 4, 0]]
    np.testing.assert_allclose(
        iou(overlaps), [[0, 6 / 7, 3 / 8, 1 / 8], [1 / 4, 2 / 8, 2 / 6, 0]], rtol=1e-15
    )
    # Head and ear together are seven pixels, of which mask 0 has six of its seven.
    associated = association(overlaps)
    assert associated.tolist() == [[False, True, True, False], [True, False, False, False]]
    np.testing.assert_allclose(associated_iou(overlaps, associated), [6 / 8, 1 / 4], rtol=1e-15)
    assert factor_quality(overlaps) == pytest.approx((6 / 7 + 2 / 6) / 2)


@given(arrays(bool, (3, 4, 5)), arrays(bool, (2, 4, 5)), arrays(bool, (2,)))
@settings(deadline=None, max_examples=50)
def test_overlapping_parts_agree_with_scikit_learn(
    parts: np.ndarray, masks: np.ndarray, chosen: np.ndarray
) -> None:
    labels = with_parts(np.zeros((4, 5), np.uint8), dict(enumerate(parts, 1)))
    overlaps = count_overlaps([(masks, labels)], n_parts=3)

    for part in range(3):
        for mask in range(2):
            expected = jaccard_score(parts[part].ravel(), masks[mask].ravel(), zero_division=0)
            assert iou(overlaps)[mask, part + 1] == pytest.approx(expected)
    associated = np.tile([False, *chosen, True], (2, 1))
    union = parts[np.array([*chosen, True])].any(0)
    for mask, value in zip(masks, associated_iou(overlaps, associated), strict=True):
        assert value == pytest.approx(jaccard_score(union.ravel(), mask.ravel(), zero_division=0))


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8])
def test_up_to_eight_parts_share_a_pixel(depth: int) -> None:
    everywhere = np.ones((2, 3), bool)
    parts = dict.fromkeys(range(253, 253 - depth, -1), everywhere)
    labels = with_parts(np.full((2, 3), 254, np.uint8), parts)

    truth = count_overlaps([(everywhere[None], labels)], 253).truth

    assert np.flatnonzero(truth).tolist() == sorted(parts)
    assert set(truth[sorted(parts)].tolist()) == {6}
    with pytest.raises(InputError, match="nine parts share a pixel"):
        with_parts(labels, dict.fromkeys(range(1, 10), everywhere))


label_maps = arrays(np.uint8, (4, 5), elements=st.integers(0, 3))


@given(st.lists(st.tuples(label_maps, label_maps), min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_iou_and_coverage_agree_with_scikit_learn(pairs: list[tuple[np.ndarray, ...]]) -> None:
    # Masks that tile, label by label, so that scikit-learn sees one prediction a pixel.
    masks = [np.stack([predicted == label for label in range(4)]) for predicted, _ in pairs]
    overlaps = count_overlaps(zip(masks, (truth for _, truth in pairs), strict=True), n_parts=3)

    predicted, truth = (np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1))
    expected = jaccard_score(truth, predicted, labels=range(4), average=None, zero_division=0)
    np.testing.assert_allclose(np.diag(iou(overlaps)), expected, rtol=1e-12)
    for label in np.unique(truth):
        share = np.mean(predicted[truth == label] == label)
        assert coverage(overlaps)[label, label] == pytest.approx(share)


@given(
    arrays(bool, (3, 4, 5)), arrays(np.uint8, (4, 5), elements=st.sampled_from([0, 1, 2, 254, 255]))
)
@settings(deadline=None, max_examples=50)
def test_metrics_stay_in_range_for_any_masks(masks: np.ndarray, labels: np.ndarray) -> None:
    overlaps = count_overlaps([(masks, labels)], n_parts=2)

    for values in (iou(overlaps), coverage(overlaps), [factor_quality(overlaps)]):
        assert np.isfinite(values).all()
        assert (np.asarray(values) >= 0).all()
        assert (np.asarray(values) <= 1).all()


@pytest.mark.parametrize(
    "counts", [[[0, 32, 32], [96, 0, 0], [0, 128, 1]], [[5, 5], [5, 5]], [[3, 0], [0, 7]], [[4]]]
)
def test_mutual_information_of_counts_is_that_of_labels(counts: list[list[int]]) -> None:
    table = np.array(counts)
    groups, parts = (np.repeat(x.ravel(), table.ravel()) for x in np.indices(table.shape))
    expected = normalized_mutual_info_score(parts, groups)
    assert normalized_mutual_information(table) == pytest.approx(expected)


# --- boxes ---


def test_the_iou_of_the_nearest_box_by_hand() -> None:
    # 2 × 2 and 2 × 2 that share one pixel: 1 of 7. A box in another: 4 of 16.
    box = (0, 0, 2, 2)
    for truth, expected in (
        ([(1, 1, 3, 3)], 1 / 7),
        ([(1, 1, 3, 3), (-1, -1, 3, 3)], 4 / 16),
        ([(2, 0, 4, 2), (1, 1, 1, 5)], 0),
        ([], 0),
    ):
        assert best_iou(box, truth) == expected
    assert best_iou(None, [box]) == 0


def test_corloc_by_hand() -> None:
    square = (0.0, 0.0, 10.0, 10.0)
    far = (50.0, 50.0, 60.0, 60.0)
    half = (0.0, 0.0, 10.0, 5.0)  # IoU 0.5, not above
    most = (0.0, 0.0, 10.0, 6.0)  # IoU 0.6

    assert (
        corloc([square, square, most, None, square], [[far, square], [half], [square], [far], []])
        == 2 / 5
    )
