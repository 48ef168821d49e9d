"""Rows beyond memory: memory-mapped, fetched ahead, and within a bound."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from matrices import noisy_product
from rounding import coefficient_rounding
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization import NMF, PCA, KMeans
from deepff.factorization.blocks import RowBlocks

MIB = 2**20


def mapped(A: Tensor, folder: Path) -> np.memmap:
    np.save(folder / "A.npy", A.numpy())
    return np.load(folder / "A.npy", mmap_mode="r")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The blocks that are fetched ahead."""
    blocks: list[Tensor] = []
    fetch = RowBlocks.fetched

    def noted(self: RowBlocks, index: slice) -> Tensor:
        blocks.append(fetch(self, index))
        return blocks[-1]

    monkeypatch.setattr(RowBlocks, "fetched", noted)
    return blocks


@pytest.mark.parametrize("build", [lambda: NMF(4, random_state=0), lambda: PCA(4)])
def test_a_memory_map_gives_the_same_bits(build, tmp_path: Path, fetched: list[Tensor]) -> None:
    A = noisy_product()
    in_memory, on_disk = build(), build()
    H = in_memory.fit_transform(A)
    assert not fetched
    rows = mapped(A, tmp_path)
    assert np.array_equal(on_disk.fit_transform(rows), H)
    assert np.array_equal(on_disk.components_, in_memory.components_)
    assert on_disk.n_reads_ == in_memory.n_reads_
    # PCA reads once more for H.
    n_reads = on_disk.n_reads_ + isinstance(on_disk, PCA)
    assert sum(map(len, fetched)) == n_reads * len(A)
    assert np.array_equal(on_disk.transform(rows), in_memory.transform(A))


def test_memory_bounds_blocks_and_sample(
    tmp_path: Path, fetched: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = []
    take = RowBlocks.take

    def noted(self: RowBlocks, indices: Tensor) -> Tensor:
        samples.append(take(self, indices))
        return samples[-1]

    monkeypatch.setattr(RowBlocks, "take", noted)
    A = noisy_product()
    reference = NMF(4, random_state=0).fit(A)
    model = NMF(4, random_state=0, memory=4 * MIB).fit(mapped(A, tmp_path))
    assert max(block.nbytes for block in fetched) <= 4 * MIB // 16
    assert samples[-1].nbytes <= 4 * MIB // 8 < samples[0].nbytes
    assert sum(map(len, fetched)) == model.n_reads_ * len(A)
    assert model.relative_err_ == pytest.approx(reference.relative_err_, rel=1e-3)


def test_the_sample_has_rows_for_every_factor_whatever_the_bound() -> None:
    """Forty groups with channels of their own, and memory for 32 of their rows."""
    generator = torch.Generator().manual_seed(0)
    H = torch.zeros(9000, 40)
    H[torch.arange(9000), torch.randint(40, (9000,), generator=generator)] = 1
    A = H @ torch.block_diag(*torch.rand(40, 1, 25, generator=generator))
    with pytest.warns(UserWarning, match="starts on 1280 of 6000 rows.* 184 MiB"):
        model = NMF(40, random_state=0, memory=MIB).fit(A)
    assert model.relative_err_ < 1e-5


def test_the_bound_changes_rounding_only(tmp_path: Path) -> None:
    """With the whole sample within the bound, other blocks make no difference."""
    A = noisy_product()
    bounded = NMF(5, random_state=0, memory=13 * MIB)  # 6000 rows are an eighth of it
    whole = NMF(5, random_state=0)
    expected = whole.fit_transform(A)
    H = bounded.fit_transform(mapped(A, tmp_path))
    np.testing.assert_allclose(H, expected, rtol=0, atol=1e-5 * float(expected.max()))
    np.testing.assert_allclose(bounded.components_, whole.components_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", ["hals", "mu"])
def test_h_moves_to_a_file_that_leaves_nothing_behind(
    solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = []
    from_file = torch.from_file

    def noted(*args: object, **kwargs: object) -> Tensor:
        made.append(from_file(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(torch, "from_file", noted)
    A = noisy_product(channels=16, k=8)
    short = NMF(8, solver=solver, random_state=0, max_iter=4, memory=2 * MIB)
    H = short.fit_transform(A)
    assert [values.shape for values in made] == [(40_000 * 8,)]
    assert H.untyped_storage().data_ptr() == made[0].untyped_storage().data_ptr()
    assert not list(tmp_path.iterdir())
    expected = float((A - H @ short.components_).norm() / A.norm())
    assert short.relative_err_ == pytest.approx(expected, rel=1e-4)
    close = coefficient_rounding(A, short.components_)
    torch.testing.assert_close(short.transform(A), H, rtol=0, atol=close)


def test_blocks_of_another_dtype_are_converted_ahead(tmp_path: Path, fetched: list[Tensor]) -> None:
    A = noisy_product(3000).half()
    np.save(tmp_path / "A.npy", A.numpy())
    rows = np.load(tmp_path / "A.npy", mmap_mode="r")
    H = NMF(3, random_state=0).fit_transform(rows)
    assert {block.dtype for block in fetched} == {torch.float32}
    assert np.array_equal(H, NMF(3, random_state=0).fit_transform(A.float()))


def test_a_mistake_in_rows_on_disk_is_refused(tmp_path: Path) -> None:
    A = noisy_product()
    A[15_000, 3] = -0.75
    with pytest.raises(InputError, match=r"-0\.75"):
        NMF(3, random_state=0).fit(mapped(A, tmp_path))


def test_bounds_that_cannot_be_kept_are_refused() -> None:
    A = noisy_product(rows=9000)
    with pytest.raises(InputError, match="at least 1 MiB"):
        NMF(3, memory=1000).fit(A)
    for memory in ("1GiB", 2.0**30):
        with pytest.raises(InputError, match="whole number of bytes"):
            NMF(3, memory=memory).fit(A)
    with pytest.raises(InputError, match="k-means needs all"):
        KMeans(3, memory=2 * MIB).fit(A)


def test_the_bits_do_not_depend_on_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits = []
    for free in (2**30, 2**36):
        monkeypatch.setattr("deepff.factorization.blocks.available_memory", lambda free=free: free)
        fits.append(NMF(3, random_state=0).fit(noisy_product()).components_)
    assert torch.equal(*fits)


def test_reads_stay_within_eight_by_default() -> None:
    """Noise has no structure to converge to, so every read that is allowed is made."""
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(60_000, 40, generator=generator)
    model = NMF(8, random_state=0, tol=0).fit(A)
    assert model.n_reads_ == 8
    huge = NMF(8, random_state=0, tol=0).fit(A * 1e30)  # once more to find the scale
    assert huge.n_reads_ == 8
    assert huge.n_iter_ == model.n_iter_ - 1
    H, W = (torch.rand(shape, generator=generator) ** 4 for shape in ((60_000, 12), (12, 40)))
    nearly_exact = NMF(12, random_state=0, tol=0).fit(H @ W)  # once more for the error
    assert nearly_exact.relative_err_ < 0.03
    assert nearly_exact.n_reads_ == 8


def test_reading_keeps_nothing_of_each_block() -> None:
    """Python's own memory beside 9,375 blocks of the smallest size, of rows that are all one."""
    rows = RowBlocks(torch.ones(1, 256).expand(600_000, 256), memory=MIB)
    tracemalloc.start()
    filled, total = rows.scan()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert filled.all() and total == pytest.approx(600_000 * 256)
    assert peak < 200_000
