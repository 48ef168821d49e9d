"""Rows that are mostly zero: kept without their zeros, and factorised as the others are."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization import NMF
from deepff.factorization.blocks import RowBlocks
from deepff.factorization.sparse import SparseBlock


def mostly_zero(rows: int = 3000, channels: int = 80, k: int = 3, seed: int = 0) -> Tensor:
    """Non-negative, of rank k but for noise, 4 % of the entries not zero, some rows empty."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.rand(rows, k, generator=generator)
    W = torch.rand(k, channels, generator=generator)
    A = H @ W + 0.2 * torch.rand(rows, channels, generator=generator)
    A = A * (torch.rand(rows, channels, generator=generator) < 0.04)
    A[::7] = 0
    return A


def as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no matrix for a mostly zero one from here on."""
    monkeypatch.setattr("deepff.factorization.blocks.SPARSE_DENSITY", 0)


@settings(deadline=None, max_examples=50)
@given(
    shape=st.tuples(st.integers(1, 1100), st.integers(1, 9)),
    density=st.sampled_from([0, 0.02, 0.5, 1]),
    seed=st.integers(0, 99),
)
def test_products_are_those_of_the_block(shape: tuple[int, int], density: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(shape, generator=generator)
    block *= torch.rand(shape, generator=generator) < density
    H, W = torch.rand(4, shape[0], generator=generator), torch.rand(4, shape[1])
    sparse = SparseBlock.of(block)
    assert torch.equal(sparse.to_dense(), block)
    torch.testing.assert_close(sparse.norms(), block.norm(dim=1))
    weights = torch.rand(shape[0], generator=generator)
    assert torch.equal(sparse.weighted(weights).to_dense(), block * weights[:, None])
    assert sum(len(part) for part in sparse.entries()) == int((block != 0).sum())
    torch.testing.assert_close(sparse @ W.T, block @ W.T, rtol=1e-5, atol=1e-5)
    expected = H.double() @ block.double()
    torch.testing.assert_close(sparse.weighted_sums(H), expected, rtol=1e-4, atol=1e-4)
    indices = torch.arange(shape[0])[torch.rand(shape[0], generator=generator) < 0.3]
    assert torch.equal(
        SparseBlock.joined([sparse, sparse]).take(indices).to_dense(), block[indices]
    )


@pytest.mark.parametrize("solver", ["hals", "mu"])
@pytest.mark.parametrize("power", [0, -100, 90])
def test_factors_are_those_found_with_the_zeros(
    solver: str, power: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = torch.ldexp(mostly_zero(), torch.tensor(power))
    # HALS goes on until float32's loss says nothing more, which is past its last digits of W.
    limit, close = (300, 1e-2) if solver == "hals" else (20, 1e-4)
    model = NMF(3, solver=solver, random_state=0, max_iter=limit, tol=0)
    H = model.fit_transform(A)
    as_any_other(monkeypatch)
    other = NMF(3, solver=solver, random_state=0, max_iter=limit, tol=0)
    torch.testing.assert_close(
        torch.ldexp(H, torch.tensor(-power)),
        torch.ldexp(other.fit_transform(A), torch.tensor(-power)),
        rtol=0,
        atol=close,
    )
    torch.testing.assert_close(model.components_, other.components_, rtol=0, atol=close)
    assert model.relative_err_ == pytest.approx(other.relative_err_, rel=1e-5)
    assert model.n_reads_ == other.n_reads_


def test_the_error_of_an_exact_fit_is_that_of_the_factors() -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.zeros(2000, 60)
    for j, share in enumerate([0.1, 0.2, 0.05]):  # three groups with a channel or two each
        chosen = torch.rand(2000, generator=generator) < share
        A[chosen, 2 * j] = A[chosen, 2 * j + 1] = torch.rand(int(chosen.sum()), generator=generator)
    model = NMF(3, random_state=0)
    H = model.fit_transform(A)
    true = float((A.double() - H.double() @ model.components_.double()).norm() / A.norm())
    assert true < 1e-5
    assert model.relative_err_ == pytest.approx(true, abs=2e-6)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_one_wrong_entry_among_zeros_is_refused(wrong: float) -> None:
    A = mostly_zero()
    A[1234, 5] = wrong
    with pytest.raises(InputError, match="down to -1" if wrong == -1 else "NaN or infinite"):
        NMF(3, random_state=0).fit(A)


def test_rows_on_disk_are_read_from_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = mostly_zero()
    np.save(tmp_path / "A.npy", A.numpy())
    fetched: list[int] = []
    fetch = RowBlocks.fetched

    def counted(self: RowBlocks, place: slice) -> Tensor:
        fetched.append(place.stop - place.start)
        return fetch(self, place)

    monkeypatch.setattr(RowBlocks, "fetched", counted)
    model = NMF(3, random_state=0).fit(np.load(tmp_path / "A.npy", mmap_mode="r"))
    assert sum(fetched) == len(A)
    assert model.n_reads_ >= 2
    assert np.array_equal(model.components_, NMF(3, random_state=0).fit(A).components_)


def test_what_is_kept_stays_within_its_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sample may miss what is dense: here the second half of the rows, but for its own."""
    A = mostly_zero(60_000, 64, seed=1)
    places = torch.arange(len(A))
    A[(places >= len(A) // 2) & (places % (len(A) // 64) != 0)] = 0.5
    memory = 16 * 2**20
    rows = RowBlocks(A, memory=memory)
    kept = [block.n_bytes for _, block in rows.compress() if isinstance(block, SparseBlock)]
    assert 0 < sum(kept[:-1]) <= memory // 8
    again = [block for _, block in rows.read_compressed()]
    assert all(isinstance(block, Tensor) for block in again)
    assert torch.equal(torch.cat(again), A)
    error = NMF(2, random_state=0, memory=memory).fit(A).relative_err_
    as_any_other(monkeypatch)
    other = NMF(2, random_state=0, memory=memory).fit(A).relative_err_
    assert error == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("density", [0.02, 0.05, 0.06, 0.08])
def test_what_is_kept_and_its_bits_do_not_depend_on_threads(density: float) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(6000, 200, generator=generator)
    A *= torch.rand(A.shape, generator=generator) < density
    H, W = torch.rand(3, len(A), generator=generator), torch.rand(200, 3, generator=generator)
    kinds, products = set(), []
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        kinds.add(isinstance(next(RowBlocks(A).compress())[1], SparseBlock))
        sparse = SparseBlock.of(A)
        products.append((sparse @ W, sparse.weighted_sums(H)))
    assert kinds == {density < 0.07}
    for product, sums in products[1:]:
        assert torch.equal(product, products[0][0]) and torch.equal(sums, products[0][1])


def test_the_bits_do_not_depend_on_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deepff.factorization.blocks.SPARSE_SHARE", 2**10)
    A = mostly_zero(100_000)  # 2.5 MB without its zeros
    found = []
    for free in (2**30, 2**36):
        monkeypatch.setattr("deepff.factorization.blocks.available_memory", lambda free=free: free)
        found.append(NMF(3, random_state=0).fit(A).components_)
    assert torch.equal(*found)
