"""Rows that are mostly zero, as after a ReLU, by their other entries."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

# Measured: the entries of so many rows are found while these are in the cache.
_PART_ROWS = 512

T = TypeVar("T")


class SparseBlock:
    """Rows (b, c), float32 on the CPU, without their zeros; used as a tensor of them would be."""

    device = torch.device("cpu")

    def __init__(self, parts: list[csr_array]) -> None:
        self._parts = parts
        self.shape = sum(part.shape[0] for part in parts), parts[0].shape[1]

    @classmethod
    def of(cls, block: Tensor) -> Self:
        """Those of a tensor (b, c)."""
        return cls([_compressed(part.numpy()) for part in block.split(_PART_ROWS)])

    @classmethod
    def joined(cls, blocks: "list[SparseBlock]") -> Self:
        """All rows of the blocks, one block after the other."""
        return cls([part for block in blocks for part in block._parts])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def n_bytes(self) -> int:
        """The memory that entries and places take."""
        arrays = [(part.data, part.indices, part.indptr) for part in self._parts]
        return sum(array.nbytes for part in arrays for array in part)

    def entries(self) -> list[Tensor]:
        """All entries but the zeros, NaN among them; never an empty tensor."""
        return [torch.from_numpy(part.data) for part in self._parts if part.nnz]

    def norms(self) -> Tensor:
        """The length of each row (b,)."""
        ones = np.ones(self.shape[1], dtype=np.float32)
        with np.errstate(over="ignore"):  # infinite, as those of a tensor
            squares = [
                csr_array((np.square(part.data), part.indices, part.indptr), part.shape) @ ones
                for part in self._parts
            ]
        return torch.from_numpy(np.sqrt(np.concatenate(squares)))

    def weighted(self, weights: Tensor) -> "SparseBlock":
        """Each row times its weight (b,)."""
        parts = []
        for part, own in zip(self._parts, self._split(weights), strict=True):
            data = part.data * np.repeat(own.numpy(), np.diff(part.indptr))
            parts.append(csr_array((data, part.indices, part.indptr), part.shape))
        return SparseBlock(parts)

    def to_dense(self) -> Tensor:
        """The tensor (b, c)."""
        return torch.from_numpy(np.concatenate([part.toarray() for part in self._parts]))

    def take(self, indices: Tensor) -> "SparseBlock":
        """The rows at ascending `indices` (m,)."""
        ends = np.cumsum([part.shape[0] for part in self._parts])
        pieces = np.split(indices.numpy(), np.searchsorted(indices.numpy(), ends[:-1]))
        starts = [0, *ends[:-1]]
        taken = [
            part[piece - start]
            for part, piece, start in zip(self._parts, pieces, starts, strict=True)
        ]
        return SparseBlock([vstack(taken, format="csr")])

    def __matmul__(self, X: Tensor) -> Tensor:
        """block · X (b, m), for X (c, m)."""
        columns = np.ascontiguousarray(X.numpy())
        products = _at_once(lambda part: part @ columns, self._parts)
        return torch.from_numpy(np.concatenate(products))

    def weighted_sums(self, H: Tensor) -> Tensor:
        """H · block (k, c) in float64, for H (k, b)."""
        pairs = [(h.numpy(), part) for h, part in zip(self._split(H), self._parts, strict=True)]
        sums = _at_once(lambda pair: pair[0] @ pair[1], pairs)
        total = torch.zeros(len(H), self.shape[1], dtype=torch.float64, device="cpu")
        for own in sums:  # in one order, however many threads there are
            total += torch.from_numpy(own)
        return total

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of the rows (..., b), of each part its own."""
        return values.split([part.shape[0] for part in self._parts], dim=-1)


def dense(rows: Tensor | SparseBlock) -> Tensor:
    """Rows (b, c) with their zeros."""
    return rows.to_dense() if isinstance(rows, SparseBlock) else rows


def row_norms(rows: Tensor | SparseBlock) -> Tensor:
    """The length of each row (b,)."""
    return rows.norms() if isinstance(rows, SparseBlock) else torch.linalg.vector_norm(rows, dim=1)


def _at_once(product: Callable[..., T], parts: list) -> list[T]:
    """A product of each part, on as many threads as torch uses: SciPy's take one each."""
    n_threads = min(torch.get_num_threads(), len(parts))
    if n_threads == 1:
        return [product(part) for part in parts]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(product, parts))


def _compressed(rows: np.ndarray) -> csr_array:
    """The rows (b, c) in compressed sparse rows: three times as fast as `csr_array(rows)`."""
    b, c = rows.shape
    places = np.flatnonzero(rows != 0)
    starts = np.searchsorted(places, np.arange(b + 1) * c)
    channels = places - np.repeat(np.arange(b) * c, np.diff(starts))
    indices, indptr = channels.astype(np.int32), starts.astype(np.int32)
    return csr_array((rows.reshape(-1).take(places), indices, indptr), shape=rows.shape)
