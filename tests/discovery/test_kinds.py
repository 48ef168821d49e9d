"""Kinds of things in a set, and scores of instances, against values worked out by hand."""

import itertools
from dataclasses import asdict, replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import deepff
from deepff.activations.activations import FeatureSource
from deepff.app.edits import set_status
from deepff.app.kept_masks import NamedMask, keep
from deepff.app.label_file import LabelStore
from deepff.cli.main import app
from deepff.discovery.kinds import clusters
from deepff.errors import InputError, InputWarning
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.results.concept_bank import load_concepts
from deepff.results.known_instances import KnownInstances, Negatives

SIZE = 224


def around(center: int, n: int, seed: int = 0) -> np.ndarray:
    """Rows of length 1 with a cosine of 0.8 or more to an axis of 20."""
    noise = np.random.default_rng(seed).normal(size=(n, 20)) * 0.1
    rows = np.eye(20)[center] + noise
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(deadline=None, max_examples=30)
@given(st.permutations([0] * 7 + [1] * 6 + [2] * 5))
def test_kinds_that_have_nothing_in_common_are_told_apart_in_any_order(order):
    rows = np.stack([around(kind, 1, seed)[0] for seed, kind in enumerate(order)])
    # The largest is 0, and so on: here as the kinds are numbered.
    assert clusters(rows).tolist() == list(order)


def test_one_kind_stays_one_and_less_than_five_images_are_no_kind():
    assert not clusters(around(0, 10)).any()
    # Four images that are a little like the second kind, and have nothing of the first.
    odd = np.eye(20)[[5] * 4] + 0.2 * np.eye(20)[[1] * 4]
    odd /= np.linalg.norm(odd, axis=1, keepdims=True)
    rows = np.concatenate([around(0, 6), around(1, 5), odd])
    assert clusters(rows).tolist() == [1] * 6 + [0] * 9
    assert clusters(around(0, 1)).tolist() == [0]


def test_a_number_of_kinds_that_is_asked_for_is_what_comes_out():
    rows = np.concatenate([around(0, 5), around(1, 4), around(2, 1)])
    assert clusters(rows, 3).tolist() == [0] * 5 + [1] * 4 + [2]
    assert len(set(clusters(rows, 2).tolist())) == 2
    assert not clusters(rows, 1).any()


def test_the_scale_is_that_of_the_known_instances_among_themselves(source):
    rows = around(0, 30)
    backgrounds = around(9, 30, 1)
    instances = KnownInstances(
        torch.from_numpy(rows).float(),
        torch.from_numpy(backgrounds).float(),
        torch.zeros(30).long(),
        source,
    )

    def largest(row: np.ndarray, others: np.ndarray) -> float:
        return np.sort(others @ row)[-5:].mean()

    def likeness(row: np.ndarray, others: np.ndarray, around_them: np.ndarray) -> float:
        return largest(row, others) - largest(row, around_them) / 2

    among = [
        likeness(rows[i], np.delete(rows, i, axis=0), np.delete(backgrounds, i, axis=0))
        for i in range(30)
    ]
    low, median = np.percentile(among, [20, 50])
    low = min(low, 0.8 * median)
    # From the axis of all of them to one that none has anything of.
    turned = [np.cos(x) * np.eye(20)[0] + np.sin(x) * np.eye(20)[7] for x in np.linspace(0, 1.5, 9)]
    spread = max(median - low, 0.1)
    odds = [9 ** ((likeness(row, rows, backgrounds) - low) / spread) for row in turned]
    scores = instances.scores(torch.tensor(np.stack(turned)).float(), 0)
    assert scores.tolist() == pytest.approx([x / (1 + x) for x in odds], abs=1e-4)
    assert scores[0] > 0.8 and scores[-1] < 0.01
    # An instance of another factor, of which none is known.
    assert instances.scores(torch.from_numpy(rows[:1]).float(), 1).item() == 0


def test_images_without_the_thing_move_the_scale_and_take_from_what_is_like_theirs(source):
    rows, backgrounds = around(0, 30), around(9, 30, 1)
    # Four images of which each has two pieces, a little like the thing.
    pieces = around(3, 8, 2) + 0.3 * np.eye(20)[0]
    pieces /= np.linalg.norm(pieces, axis=1, keepdims=True)
    images = np.arange(8) // 2
    tensors = [torch.from_numpy(each).float() for each in (rows, backgrounds, pieces)]
    negatives = Negatives(tensors[2], torch.zeros(8).long(), torch.from_numpy(images))
    without = KnownInstances(tensors[0], tensors[1], torch.zeros(30).long(), source)
    instances = replace(without, negatives=negatives)

    def largest(row: np.ndarray, others: np.ndarray) -> float:
        return np.sort(others @ row)[-5:].mean()

    def likeness(row: np.ndarray, known: np.ndarray, far: np.ndarray, other: np.ndarray) -> float:
        return largest(row, known) - largest(row, far) / 2 - largest(row, other) / 2

    among = [
        likeness(rows[i], np.delete(rows, i, axis=0), np.delete(backgrounds, i, axis=0), pieces)
        for i in range(30)
    ]
    of_pieces = np.array(
        [likeness(pieces[i], rows, backgrounds, pieces[images != images[i]]) for i in range(8)]
    )
    best = of_pieces.reshape(4, 2).max(1)
    median = np.median(among)
    low = best.mean() + max(
        NormalDist().inv_cdf(0.95) * best.std(ddof=1), (median - best.mean()) / 3
    )
    spread = max(median - low, 0.1)
    new = np.concatenate([around(0, 2, 5), around(3, 2, 6)])
    odds = [9 ** ((likeness(row, rows, backgrounds, pieces) - low) / spread) for row in new]
    scores = instances.scores(torch.from_numpy(new).float(), 0)
    assert scores.tolist() == pytest.approx([x / (1 + x) for x in odds], abs=1e-4)
    assert scores[:2].min() > 0.8 and scores[2:].max() < 0.3
    # Those of another factor tell this one nothing.
    other = replace(without, negatives=replace(negatives, factors=torch.ones(8).long()))
    assert torch.equal(other.scores(tensors[2], 0), without.scores(tensors[2], 0))


@pytest.fixture(scope="module")
def source() -> FeatureSource:
    """Of features; which is of no importance to their scores."""
    return deepff.discover(
        [(255 * np.eye(64, dtype=np.uint8))[..., None].repeat(3, 2)], 1, size=64
    ).sources[0]


@pytest.fixture(scope="module")
def groups(data_root):
    """Six kites and six cheetahs, and what is the object in them."""
    return [next(iter(load_icoseg(data_root / "icoseg", [number]))) for number in ("033", "028")]


@pytest.fixture(scope="module")
def files(groups):
    return [[str(item.image.path) for item in group.images[:6]] for group in groups]


@pytest.fixture(scope="module")
def mixed(files):
    # In turns, so that no kind has consecutive images.
    every = [path for pair in zip(*files, strict=True) for path in pair]
    return deepff.discover(every, recipe="contrast", size=SIZE)


def test_each_kind_in_a_mixed_folder_is_found_as_if_it_were_alone(mixed, files):
    assert mixed.n_components == 2
    strongest = [int(mixed.heatmaps.grid(i).amax((1, 2)).argmax()) for i in range(12)]
    kites = strongest[0]
    assert strongest == [kites, 1 - kites] * 6
    masks = [regions.masks for regions in mixed.regions()]
    for kind, paths, first in ((kites, files[0], 0), (1 - kites, files[1], 1)):
        alone = deepff.discover(paths, recipe="contrast", size=SIZE)
        assert alone.n_components == 1
        for regions, both in zip(alone.regions(), masks[first::2], strict=True):
            assert torch.equal(regions.masks[0], both[kind])
            assert not both[1 - kind].any()


def test_every_image_of_the_set_shows_its_kind_and_saving_changes_no_score(mixed, tmp_path):
    scores = mixed.scores()
    assert scores.shape == (12, 2)
    assert ((scores > 0).sum(1) == 1).all()  # one kind an image
    assert (scores.amax(1) > 0.05).sum() >= 11
    mixed.save(tmp_path / "mixed")
    assert torch.equal(deepff.load(tmp_path / "mixed").scores(), scores)


def test_a_bank_of_two_kinds_tells_them_apart_in_new_images_and_leaves_out_others(
    mixed, groups, data_root, tmp_path
):
    mixed.bank.save(tmp_path / "bank.safetensors")
    bank = load_concepts(tmp_path / "bank.safetensors")
    new = [[str(item.image.path) for item in group.images[6:10]] for group in groups]
    (elephants,) = load_icoseg(data_root / "icoseg", ["021"])
    others = [str(item.image.path) for item in elephants.images[:4]]
    result = deepff.apply(bank, [*itertools.chain(*new), *others])
    scores = result.scores()
    kites = int(mixed.heatmaps.grid(0).amax((1, 2)).argmax())
    n_kites, n_cheetahs = map(len, new)
    assert (scores[:n_kites].argmax(1) == kites).all()
    assert (scores[n_kites : n_kites + n_cheetahs].argmax(1) == 1 - kites).all()
    marked = [bool(regions.masks.any()) for regions in result.regions()]
    assert sum(marked[: n_kites + n_cheetahs]) >= n_kites + n_cheetahs - 2
    assert sum(marked[n_kites + n_cheetahs :]) <= 1
    every = [bool(regions.masks.any()) for regions in result.regions(min_score=0)]
    assert all(every)
    assert asdict(bank.known.source) == asdict(mixed.bank.known.source)


def test_a_folder_without_the_things_lowers_the_scores_of_others_like_it(
    mixed, groups, data_root, tmp_path
):
    (elephants,) = load_icoseg(data_root / "icoseg", ["021"])
    paths = [str(item.image.path) for item in elephants.images]
    new = [str(item.image.path) for group in groups for item in group.images[6:9]]
    every = [*new, *paths[1::2]]
    before = deepff.apply(mixed.bank, every).scores().amax(1)
    result = deepff.apply(mixed.bank, every, without=paths[::2])
    after = result.scores().amax(1)
    n = len(new)
    assert (after[n:] >= 0.5).sum() <= 1
    assert (after[:n] >= 0.5).all() and (before[:n] < 0.5).any()
    assert not result.bank.marks_as(mixed.bank)
    # The bank keeps what it was told.
    result.bank.save(tmp_path / "bank.safetensors")
    bank = load_concepts(tmp_path / "bank.safetensors")
    assert bank.marks_as(result.bank)
    assert torch.equal(deepff.apply(bank, every).scores().amax(1), after)


def test_a_bank_without_scores_is_told_nothing_by_images_without_the_object(files):
    factors = deepff.discover(files[0][:2], 1, size=SIZE)
    with pytest.raises(InputError, match="has no scores"):
        deepff.apply(factors.bank, files[1][:1], without=files[1][1:2])


def test_where_it_was_decided_that_nothing_is_here_counts_for_a_bank(mixed, files, tmp_path):
    mixed.save(tmp_path / "mixed")
    store = LabelStore(tmp_path / "mixed", mixed)
    empty = NamedMask(np.zeros(mixed.image_sizes[3], np.uint8), ())
    store.edit(
        0,
        lambda labels: set_status(
            labels, mixed.names[3], "accepted", keep(labels, mixed.names[3], empty, mended=True)
        ),
    )
    bank, out = tmp_path / "mixed/concepts.safetensors", tmp_path / "new"
    without = ["--without", files[0][1], "--without", files[0][2]]
    for names, n_images in (([], 1), (without, 3)):
        command = ["apply", str(bank), files[0][0], "--out", str(out), "--overwrite", *names]
        ran = CliRunner().invoke(app, command)
        assert ran.exit_code == 0, ran.output
        negatives = load_concepts(out / "concepts.safetensors").known.negatives
        assert len(negatives.images.unique()) == n_images


def test_images_without_the_object_that_show_it_are_named(mixed, files):
    with pytest.warns(InputWarning, match=r"6 of the 6 images without the object seem to show it"):
        deepff.apply(mixed.bank, files[1][:2], without=files[0])


def test_kinds_are_called_by_their_names_in_what_is_written(mixed):
    names = [name for name in mixed.factor_names if name is not None]
    assert "cheetah" in names
    assert {instance.name for of_image in mixed.instances() for instance in of_image} >= {"cheetah"}
    plain = replace(mixed.factorization(), scores=None)
    without = replace(mixed, factorizations={2: plain})
    with pytest.raises(InputError, match="have no scores, so leave out the minimum score"):
        next(without.regions(min_score=0.4))
