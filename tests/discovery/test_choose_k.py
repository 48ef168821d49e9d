"""k by agreement between halves, the tree over k, and how both are drawn."""

import json
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import deepff
from deepff.activations.activations import Activations, ImageRecord
from deepff.discovery import choose_k
from deepff.discovery.choose_k import Selection, matched_iou, select_k
from deepff.errors import InputError
from deepff.factorization import PCA, KMeans
from deepff.pictures.tree_drawing import agreement_svg, tree_svg
from deepff.results.factorization import Factorization, Link, cell_labels, tree
from deepff.results.heatmaps import HeatMaps

SVG = "{http://www.w3.org/2000/svg}"


def planted(k: int, n_images: int = 12, cells: int = 36, seed: int = 0) -> list[torch.Tensor]:
    """Images of which each cell holds one of k factors with channels of its own, and noise."""
    generator = torch.Generator().manual_seed(seed)
    components = torch.block_diag(*[torch.rand(1, 8, generator=generator) + 0.5] * k)
    images = []
    for _ in range(n_images):
        factor = torch.randint(k, (cells,), generator=generator)
        strength = 1 + torch.rand(cells, 1, generator=generator)
        noise = torch.rand(cells, 8 * k, generator=generator)
        images.append(strength * components[factor] + 0.4 * noise)
    return images


def kmeans(k: int) -> KMeans:
    return KMeans(k, random_state=0)


def factorization(coefficients: list[list[float]]) -> Factorization:
    """One image of one row of cells; `coefficients` are H, a list for each factor."""
    H = torch.tensor(coefficients).T.contiguous()
    maps = HeatMaps(H, [(1, len(H))], [(8, 8 * len(H))])
    return Factorization(torch.ones(len(coefficients), 5), maps, 0.5, 1)


@pytest.mark.parametrize("k", [3, 4])
def test_as_many_factors_as_were_planted_are_chosen(k):
    chosen = select_k(planted(k), k_max=5)
    assert chosen.k == k
    assert list(chosen.agreements) == [2, 3, 4, 5]
    assert chosen.agreements[k] > 0.95
    # one factor more than there are splits another at random, or stays empty
    assert chosen.agreements[k + 1] < 0.85


@pytest.mark.parametrize("estimator", [PCA, kmeans])
def test_other_factorizations_find_the_planted_two_again(estimator):
    # of unequal strength, so that the principal components are the two and no mixture of them
    gains = torch.tensor([3.0] * 8 + [1.0] * 8)
    images = [gains * rows for rows in planted(2)]
    assert select_k(images, 2, estimator=estimator).agreements[2] > 0.9


def test_noise_has_one_factor():
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(36, 16, generator=generator) for _ in range(10)]
    chosen = select_k(images, k_max=3)
    assert chosen.k == 1
    assert max(chosen.agreements.values()) < 0.85


def test_the_threshold_is_reached_by_equality_and_the_largest_k_counts():
    images = planted(3)
    agreements = select_k(images, estimator=kmeans).agreements
    assert list(agreements) == [2, 3, 4, 5, 6]
    for threshold in agreements.values():
        expected = max(k for k, value in agreements.items() if value >= threshold)
        assert select_k(images, 6, threshold, estimator=kmeans).k == expected
    assert select_k(images, k_max=2, estimator=kmeans).agreements == {2: agreements[2]}
    assert select_k(images, k_max=1) == Selection(1, {})


def test_agreement_is_the_same_for_one_seed_and_is_what_choosing_goes_by():
    images = planted(4)
    chosen = select_k(images, k_max=3, random_state=3)
    assert select_k(images, k_max=3, random_state=3) == chosen
    assert select_k(images, 3, random_state=3).agreements[3] == chosen.agreements[3]
    assert select_k(images, 3, random_state=4).agreements[3] != chosen.agreements[3]


def test_activations_are_their_images_rows_however_they_lie_in_blocks():
    images = planted(3)
    records = [ImageRecord(str(i), None, (60, 60), (6, 6)) for i in range(len(images))]
    expected = select_k(images, estimator=kmeans)
    for blocks in ([torch.cat(images)], [torch.cat(images[:5]), torch.cat(images[5:])]):
        assert select_k(Activations(records, blocks), estimator=kmeans) == expected


def test_images_without_rows_do_not_take_part():
    images = planted(3)
    empty = torch.empty(0, images[0].shape[1])
    with_empty = [empty, *images[:4], empty, *images[4:]]
    assert select_k(with_empty, estimator=kmeans) == select_k(images, estimator=kmeans)


def test_of_many_cells_a_sample_of_every_image_is_looked_at(monkeypatch):
    monkeypatch.setattr(choose_k, "MAX_CELLS", 240)
    seen = []

    class Counting(KMeans):
        def transform(self, A):
            if len(A) == 12:  # all images, not a half that `fit` labels
                seen.append([len(rows) for rows in A])
            return super().transform(A)

    images = [*planted(3, n_images=11, cells=98), *planted(3, n_images=1, cells=2)]
    value = select_k(images, 3, estimator=lambda k: Counting(k, random_state=0)).agreements[3]
    assert value > 0.95
    assert len(seen) == 2 * 2 * choose_k.N_SPLITS  # for two numbers of factors
    # 1080 rows: 240 / 1080 of 98 are 21.8, and of 2 one at least
    assert all(sorted(lengths) == [1, *[22] * 11] for lengths in seen)


def test_a_k_that_a_half_cannot_be_fitted_with_is_not_tried():
    two_cells = [rows[:2] for rows in planted(3, n_images=3)]
    # halves of one image and two: 2 rows and 4
    assert list(select_k(two_cells).agreements) == [2]
    assert select_k([rows[:1] for rows in two_cells]) == Selection(1, {})
    one_channel = [rows[:, :1] for rows in planted(3)]
    assert select_k(one_channel) == Selection(1, {})


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (planted(2, n_images=1), "there is 1 image with activations"),
        ([*planted(2, n_images=1), torch.empty(0, 16)], "there is 1 image with activations"),
        ([], "there are 0 images with activations"),
    ],
)
def test_fewer_than_two_images_cannot_be_halved(images, sentence):
    for call in (lambda: select_k(images), lambda: select_k(images, 2)):
        with pytest.raises(InputError, match=sentence):
            call()


def test_only_the_cells_that_are_looked_at_are_transformed(monkeypatch):
    """Whatever is factorised in place of A, and of whichever cells: never a copy of all of A."""
    monkeypatch.setattr(choose_k, "MAX_CELLS", 240)
    images = [image.repeat(10, 1) for image in planted(3)]
    cells = [torch.arange(len(image)) % 2 == 0 for image in images]
    transformed = []

    def doubled(rows):
        transformed.append(len(rows))
        return 2 * rows

    chosen = select_k(images, 3, cells=cells, transform=doubled)
    assert sum(transformed) <= 240 + len(images)
    even = [image[own] for image, own in zip(images, cells, strict=True)]
    assert chosen == select_k([2 * image for image in even], 3)


def test_bounds_out_of_range():
    with pytest.raises(InputError, match="k_max is 0"):
        select_k(planted(2), 0)
    for threshold in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match="out of range"):
            select_k(planted(2), threshold=threshold)


def test_matched_iou_of_a_hand_made_case():
    labels = torch.tensor([0, 0, 0, 1, 1, -1, 2])
    others = torch.tensor([1, 1, 0, 0, 0, 0, -1])
    # 0 with 1: 2 of 3 cells. 1 with 0: 2 of 4 cells. 2 with 2: 0 of 1. Matched otherwise: less.
    assert matched_iou(labels, others, 3) == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    # a factor that neither uses is not found again
    assert matched_iou(labels.clamp_max(0), labels.clamp_max(0), 2) == pytest.approx(1 / 2)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_matched_iou_does_not_depend_on_the_order_of_factors(k, seed):
    generator = np.random.default_rng(seed)
    labels, others = generator.integers(-1, k, (2, 40))
    value = matched_iou(torch.tensor(labels), torch.tensor(others), k)
    assert 0 <= value <= 1
    order = generator.permutation(k)
    renamed = torch.tensor(np.where(labels < 0, -1, order[labels]))
    assert matched_iou(renamed, torch.tensor(others), k) == pytest.approx(value)
    assert matched_iou(torch.tensor(others), torch.tensor(labels), k) == pytest.approx(value)
    in_use = len(set(labels) - {-1})
    assert matched_iou(renamed, torch.tensor(labels), k) == pytest.approx(in_use / k)


def test_cells_are_labelled_whatever_a_factors_scale_and_sign():
    H = torch.tensor([[3.0, 0.0], [1.0, 2.0], [0.0, 0.0], [2.0, 1.0], [1.0, 1.0]])
    # root mean squares: √3 and √(6/5)
    expected = [0, 1, -1, 0, 1]
    for scale in ([1.0, 1.0], [100.0, 0.01], [-1.0, 5.0]):
        assert cell_labels(H * torch.tensor(scale)).tolist() == expected


PARENTS = [[4.0, 4.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0, 9.0]]
CHILDREN = [[3.0, 3.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 4.0, 5.0], [0.0, 0.0, 7.0, 0.0, 0.0]]


def test_the_tree_of_a_hand_made_case():
    """Cells 0–2 are factor 0 of k = 2 and cells 3–4 factor 1: chance is 3/5 and 2/5."""
    links = tree({3: factorization(CHILDREN), 2: factorization(PARENTS)})
    assert [(link.k, link.child, link.parent_k, link.parent) for link in links] == [
        (3, 0, 2, 0),
        (3, 1, 2, 1),
        (3, 2, 2, 0),
    ]
    assert [link.share for link in links] == pytest.approx([6 / 8, 9 / 10, 7 / 7])
    assert [link.chance for link in links] == pytest.approx([3 / 5, 2 / 5, 3 / 5])


def test_scales_do_not_change_the_tree_and_order_only_renames():
    links = tree({2: factorization(PARENTS), 3: factorization(CHILDREN)})
    scaled = [[5 * value for value in CHILDREN[0]], *CHILDREN[1:]]
    shrunk = [PARENTS[0], [0.001 * value for value in PARENTS[1]]]
    assert tree({2: factorization(shrunk), 3: factorization(scaled)}) == links

    order = [2, 0, 1]
    swapped = tree(
        {2: factorization(PARENTS[::-1]), 3: factorization([CHILDREN[j] for j in order])}
    )
    renamed = {(order[link.child], 1 - link.parent, link.share, link.chance) for link in swapped}
    assert renamed == {(link.child, link.parent, link.share, link.chance) for link in links}


def test_a_tree_goes_from_each_k_to_the_k_before_that_is_there():
    everywhere = factorization([[1.0] * 5])
    empty = [*CHILDREN, [0.0] * 5]
    links = tree({1: everywhere, 3: factorization(CHILDREN), 4: factorization(empty)})
    assert {(link.k, link.parent_k) for link in links} == {(3, 1), (4, 3)}
    assert [link.share for link in links if link.k == 3] == [1, 1, 1]
    assert [link.chance for link in links if link.k == 3] == [1, 1, 1]
    # the factor that is zero everywhere lies nowhere
    assert [link.child for link in links if link.k == 4] == [0, 1, 2]
    assert tree({3: factorization(CHILDREN)}) == []


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_plot_of_agreement_shows_every_value_at_its_height():
    svg = agreement_svg({2: 0.5, 3: 1.0, 4: 0.75}, chosen=3, threshold=0.85)
    root = ElementTree.fromstring(svg)
    assert {"0.50", "1.00", "0.75", "k = 2", "k = 3", "k = 4", "0.85"} <= set(texts(svg))
    dots = [
        (float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{SVG}circle")
    ]
    heights = [y for _, y in dots]
    assert heights[2] == pytest.approx((heights[0] + heights[1]) / 2)
    assert heights[1] < heights[2]
    assert dots == sorted(dots)
    filled = [dot.get("style") == "fill: currentColor" for dot in root.iter(f"{SVG}circle")]
    assert filled == [False, True, False]


def test_the_drawn_tree_shows_shares_as_numbers_and_as_thickness():
    links = tree({2: factorization(PARENTS), 3: factorization(CHILDREN)})
    svg = tree_svg(links, [2, 3])
    root = ElementTree.fromstring(svg)
    assert {"0.75", "0.90", "1.00", "(0.60)", "(0.40)", "k = 2", "k = 3"} <= set(texts(svg))
    widths = [float(line.get("stroke-width", "")) for line in root.iter(f"{SVG}line")]
    np.testing.assert_allclose(np.array(widths) / widths[2], [0.75, 0.9, 1.0], atol=0.01)

    nodes = list(root.iter(f"{SVG}circle"))
    assert [node.findtext(f"{SVG}title") for node in nodes] == [
        *("k = 2, factor 0", "k = 2, factor 1"),
        # children of one parent stand together, so that no links cross
        *("k = 3, factor 0", "k = 3, factor 2", "k = 3, factor 1"),
    ]
    colors = ["#" + bytes(color).hex() for color in deepff.images.painting.factor_colors(3)]
    assert [node.get("fill") for node in nodes] == [colors[j] for j in (0, 1, 0, 2, 1)]


def test_a_link_below_chance_is_not_drawn():
    links = [Link(2, 0, 1, 0, 0.4, 0.4), Link(2, 1, 1, 0, 0.39, 0.4)]
    root = ElementTree.fromstring(tree_svg(links, [1, 2]))
    assert len(list(root.iter(f"{SVG}line"))) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 3


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 14), min_size=2, max_size=5, unique=True), st.randoms())
def test_no_links_cross_and_nothing_is_drawn_outside(ks, random):
    ks = sorted(ks)
    links = [
        Link(k, child, parent_k, random.randrange(parent_k), random.random(), random.random())
        for parent_k, k in pairwise(ks)
        for child in range(k)
    ]
    root = ElementTree.fromstring(tree_svg(links, ks))
    lines = [
        tuple(float(line.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
        for line in root.iter(f"{SVG}line")
    ]
    for a in lines:
        for b in lines:
            if a[1] == b[1] and a[0] < b[0]:
                assert a[2] < b[2]
    width, height = map(float, root.get("viewBox", "").split()[2:])
    for node in root.iter(f"{SVG}circle"):
        x, y, radius = (float(node.get(name, "")) for name in ("cx", "cy", "r"))
        assert radius < x < width - radius and radius < y < height - radius


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(4):
        noise = generator.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def test_discover_with_auto_keeps_and_shows_what_k_was_chosen_by(photos, tmp_path):
    result = deepff.discover(photos, "auto", size=128, method="kmeans")
    chosen = select_k(result.activations, estimator=kmeans)
    assert list(result.factorizations) == [chosen.k]
    assert result.agreements == chosen.agreements
    assert "n_components='auto'" in result.command

    result.save(tmp_path / "result")
    assert deepff.load(tmp_path / "result").agreements == chosen.agreements
    page = (tmp_path / "result/report.html").read_text()
    assert all(f">{value:.2f}</text>" in page for value in chosen.agreements.values())

    # a manifest from before there were agreements
    manifest = json.loads((tmp_path / "result/manifest.json").read_text())
    del manifest["agreements"]
    (tmp_path / "result/manifest.json").write_text(json.dumps(manifest))
    assert deepff.load(tmp_path / "result").agreements is None


def test_the_report_of_several_k_shows_the_tree_and_of_one_none(photos, tmp_path):
    result = deepff.discover(photos, [1, 2], size=128)
    assert result.agreements is None
    result.save(tmp_path / "result")
    page = (tmp_path / "result/report.html").read_text()
    drawing = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    # at k = 1 every cell is the one factor's
    assert texts(drawing).count("1.00") == texts(drawing).count("(1.00)") == 2

    result.factorizations = {2: result.factorizations[2]}
    result.save(tmp_path / "result")
    assert "<svg" not in (tmp_path / "result/report.html").read_text()


@pytest.mark.parametrize("n_components", ["automatic", "4"])
def test_other_words_for_k(photos, n_components):
    with pytest.raises(InputError, match='give a number, several, or "auto"'):
        deepff.discover(photos, n_components)
