"""The activations as one tall matrix that is read by blocks of rows."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from deepff.errors import InputError
from deepff.runtime.distributed import all_reduce_max, all_reduce_sum, is_distributed
from deepff.runtime.files import reserve_space
from deepff.runtime.parallel import ahead, available_memory

# Measured: a block this big stays in the cache from one product to the next, and is
# still long enough for the library calls on it to cost nothing beside the products.
CPU_BLOCK_BYTES = 3 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20
# Rows: float32 sums over more of them round visibly, where channels are few.
_LONGEST_CPU_BLOCK = 2048
# Two blocks, what is computed from them and the sample must fit in the memory that is given.
_BLOCK_SHARE = 16
# Largest entries between these need no scaling for float32 to hold the sums of squares.
_SAFE = (2.0**-30, 2.0**30)

# The index of some rows, ascending, and these rows (b, c), to what is read instead of them (b, c).
Transform = Callable[[slice | Tensor, Tensor], Tensor]
# A tensor or array, dense or sparse (SciPy's too), a data frame, a list of lists of numbers; or a
# sequence of tensors or of arrays, blocks of rows with equal c.
Matrix: TypeAlias = Any
# What is held of A: tensors as they are; what is no tensor becomes one block by block.
Part: TypeAlias = Tensor | np.ndarray | csr_array


class RowBlocks:
    """One tall matrix (rows, c) of any real dtype, whole or as a sequence of blocks of rows.

    It is read in blocks of one size in float32 on `device`, however the rows were split, so that
    results do not depend on it. `transform` is applied to rows as they are read; reading and
    computing may take `memory` bytes besides A (None: what is free).
    """

    def __init__(
        self,
        A: Matrix,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
        memory: int | None = None,
    ) -> None:
        self._parts = as_parts(A)
        blocks = A if isinstance(A, list | tuple) else [A]
        self._mapped = any(isinstance(block, np.memmap) for block in blocks)
        channels = sorted({part.shape[1] for part in self._parts})
        if len(channels) > 1:
            raise InputError(
                f"The blocks of activations have {channels[0]} and {channels[-1]} channels; "
                "they must all have the same."
            )
        self._ends = np.cumsum([part.shape[0] for part in self._parts])
        self.n_rows, self.n_channels = int(self._ends[-1]), channels[0]
        if self.n_channels == 0 or (self.n_rows == 0 and not is_distributed()):
            raise InputError(
                f"The activations are {self.n_rows} rows × {self.n_channels} channels, "
                f"{self.n_channels} feature(s) (shape={self.shape}) while a minimum of 1 is "
                "required."
            )
        self.device = torch.device(device) if device is not None else _device(self._parts[0])
        if memory is not None and not isinstance(memory, Integral):
            raise InputError(f"memory is a whole number of bytes, or None, not {memory!r}.")
        self.memory = available_memory() if memory is None else memory
        if self.memory < 2**20:
            raise InputError(f"memory is {memory} bytes; it must be at least 1 MiB.")
        self._transform = transform
        self.power = 0  # what is read is A · 2^power, so that squares stay in float32's range
        self.n_reads = 0  # of all rows

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, c)."""
        return self.n_rows, self.n_channels

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once: (their index, the block (b, c)), in order."""
        return self.read()

    def read(self, times: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once; on the CPU in blocks `times` as long where the memory allows it."""
        on_cpu = self.device.type == "cpu"
        budget = times * CPU_BLOCK_BYTES if on_cpu else ACCELERATOR_BLOCK_BYTES
        budget = min(budget, self.memory // _BLOCK_SHARE)
        step = max(64, budget // (4 * self.n_channels))
        if on_cpu:
            step = min(step, times * _LONGEST_CPU_BLOCK)
        starts = range(0, self.n_rows, step)
        # One after the other: a list of all would grow with the set.
        indices = (slice(start, min(start + step, self.n_rows)) for start in starts)
        for index, block in self._fetch(indices):
            yield index, self._prepared(index, block)
        self.n_reads += 1

    def scan(self, signed: bool = False) -> tuple[Tensor, float]:
        """Check all entries and set `power`; the lengths of the rows (rows,), and ‖A‖². Negative
        entries are refused unless A may be `signed`. Then lengths alone are looked at first, and
        mostly show that all entries are in range."""
        if signed:
            lengths, energy, (_, longest) = self._measure(by_entry=False)
            if _SAFE[0] < longest < _SAFE[1]:
                return lengths, energy
        lengths, energy, extremes = self._measure(by_entry=True)
        if power := _power(extremes, signed):  # squares overflow or vanish
            self.power = power
            lengths, energy, _ = self._measure(by_entry=False)
        return lengths, energy

    def _measure(self, by_entry: bool) -> tuple[Tensor, float, Tensor]:
        """One read: the lengths of the rows, ‖A‖², and the extremes of entries, or of lengths."""
        lengths = torch.empty(self.n_rows, dtype=torch.float32, device=self.device)
        energy = sums(1, device=self.device)
        extremes = torch.zeros(2, dtype=torch.float32, device=self.device)
        for index, block in self:
            norms = lengths[index] = torch.linalg.vector_norm(block, dim=1)
            extremes = torch.maximum(extremes, _extremes(block if by_entry else norms))
            energy += norms.to(energy).square().sum()
        return lengths, float(all_reduce_sum(energy)), all_reduce_max(extremes)

    def take(self, indices: Tensor) -> Tensor:
        """The rows (m, c) at ascending `indices` (m,), float32 on the device, always a copy."""
        owner = np.searchsorted(self._ends, indices.numpy(), side="right")
        taken = [torch.empty(0, self.n_channels, dtype=torch.float32, device=self.device)]
        for i in np.unique(owner):
            part = self._parts[i]
            local = indices[torch.from_numpy(owner == i)] - int(self._ends[i] - part.shape[0])
            taken.append(dense_rows(part, local).to(self.device, torch.float32))
        return self._prepared(indices, taken[1] if len(taken) == 2 else torch.cat(taken))

    def reopen(
        self, device: str | torch.device | None = None, memory: int | None = None
    ) -> RowBlocks:
        """The same rows, unscaled and not read yet; None leaves device or memory as they are."""
        rows = copy.copy(self)
        rows.power = rows.n_reads = 0
        rows.device = torch.device(device) if device is not None else self.device
        rows.memory = memory or self.memory
        return rows

    def coefficients(self, k: int, value: float = 0.0) -> Tensor:
        """H (rows, k) filled with `value`: in memory, or in a file where the memory is short."""
        if self.device.type != "cpu" or 4 * self.n_rows * k <= self.memory // 4:
            return torch.full((self.n_rows, k), value, dtype=torch.float32, device=self.device)
        # The map outlives the name of its file, and leaves nothing behind.
        with tempfile.NamedTemporaryFile(prefix="deepff-") as file:
            size = self.n_rows * k
            reserve_space(file, 4 * size)
            H = torch.from_file(
                file.name, shared=True, size=size, dtype=torch.float32, device="cpu"
            )
        return H.fill_(value).view(self.n_rows, k)

    def _fetch(self, indices: Iterable[slice]) -> Iterator[tuple[slice, Tensor]]:
        n_bytes = sum(map(_n_bytes, self._parts))
        elsewhere = any(_device(part) != self.device for part in self._parts)
        if not (self._mapped or elsewhere or n_bytes > self.memory):
            yield from ((index, self._rows(index)) for index in indices)
            return
        with ThreadPoolExecutor(1) as pool:
            started = ((index, pool.submit(self.fetched, index)) for index in indices)
            yield from ((index, fetched.result()) for index, fetched in ahead(started, 1))

    def fetched(self, index: slice) -> Tensor:
        """The rows at `index` on the device, in memory of their own."""
        rows = self._rows(index)
        if rows.device == self.device:
            return rows.to(torch.float32, copy=True)
        if self.device.type == "cuda" and rows.device.type == "cpu":
            rows = rows.pin_memory()
        return rows.to(self.device)

    def _rows(self, index: slice) -> Tensor:
        start, stop = index.start, index.stop
        pieces = []
        i = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            offset = int(self._ends[i]) - self._parts[i].shape[0]
            end = min(stop, int(self._ends[i]))
            if end > start:
                pieces.append(dense_rows(self._parts[i], slice(start - offset, end - offset)))
                start = end
            i += 1
        # Row by row, so that how a matrix lies in memory does not change how sums are rounded.
        return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces)

    def _prepared(self, index: slice | Tensor, rows: Tensor) -> Tensor:
        rows = rows.to(self.device, torch.float32)
        if self._transform is not None:
            rows = self._transform(index, rows)
        return scaled(rows, self.power)


def _device(part: Part) -> torch.device:
    return part.device if isinstance(part, Tensor) else torch.device("cpu")


def _n_bytes(part: Part) -> int:
    return part.data.nbytes if issparse(part) else part.nbytes


def as_row_blocks(
    A: Matrix | RowBlocks, device: str | torch.device | None = None, memory: int | None = None
) -> RowBlocks:
    """`A` as blocks of rows on `device`, not read yet; it may be `RowBlocks` already."""
    if isinstance(A, RowBlocks):
        return A.reopen(device, memory)
    return RowBlocks(A, device, memory=memory)


def scaled(X: Tensor, power: int) -> Tensor:
    """X · 2^power, in float32's range."""
    return X if power == 0 else X * math.ldexp(1.0, power)


def unscaled(X: Tensor, power: int) -> Tensor:
    """X / 2^power; raises InputError where that is past float32."""
    X = scaled(X, -power)
    if power < 0:
        check_range(X)
    return X


def safe_power(block: Tensor, signed: bool) -> int:
    """The power of two to scale a block (b, c) with, mostly 0; refuses what `scan` refuses."""
    return _power(_extremes(block), signed)


def _power(extremes: Tensor, signed: bool) -> int:
    """The power that brings the largest entry near one; refuses infinite and negative entries."""
    negative, high = extremes.tolist()
    if signed:
        check_finite(negative)
        check_finite(high)
        high = max(negative, high)
    else:
        check_non_negative(-negative, high)
    if high == 0 or _SAFE[0] < high < _SAFE[1]:
        return 0
    return max(-126, min(126, -math.frexp(high)[1]))


def _extremes(block: Tensor) -> Tensor:
    """The least entry, negated, and the largest (2,); infinite where one is not a number."""
    low, high = block.aminmax()
    return torch.stack([-low, high]).nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)


def sums(*shape: int, device: torch.device) -> Tensor:
    """Zeros in float64 to add to, on `device` where that has float64."""
    return torch.zeros(shape, dtype=torch.float64, device="cpu" if device.type == "mps" else device)


def check_finite(value: float) -> None:
    """Raise InputError if a value computed from all entries (which they poison) is not finite."""
    if not math.isfinite(value):
        raise InputError("The activations hold NaN or infinite values; all must be finite.")


def check_range(X: Tensor) -> None:
    """Raise InputError if finite activations gave values that are past float32."""
    if not X.isfinite().all():
        raise InputError(
            "The activations are so large that results exceed float32's maximum of 3.4e38; divide "
            "them by a constant."
        )


def check_non_negative(low: float, high: float) -> None:
    """Raise InputError unless 0 ≤ low and high is finite (least and largest entry)."""
    check_finite(low)
    check_finite(high)
    if low < 0:
        raise InputError(
            f"Negative values in data: the activations go down to {low:.4g}; all must be ≥ 0, "
            "as after a ReLU."
        )


def as_parts(A: Matrix) -> list[Part]:
    """The blocks of rows (m, c) that A is made of; dense ones are not copied."""
    blocks = list(A) if _is_blocks(A) else [A]
    if not blocks:
        raise InputError("There are no activations: give at least one row.")
    return [_as_part(block) for block in blocks]


def are_tensors(A: Matrix) -> bool:
    """Whether A comes as tensors, so that what is computed from it should be tensors."""
    blocks = A if _is_blocks(A) else [A]
    return any(isinstance(block, Tensor) for block in blocks)


def dense_rows(part: Part, rows: slice | Tensor) -> Tensor:
    """Rows (b, c) of a part, in its dtype or one that holds it; a view if possible. `rows` is a
    slice, or ascending numbers on the CPU."""
    if isinstance(part, Tensor):
        if isinstance(rows, slice):
            return part[rows]
        return part.index_select(0, rows.to(part.device))
    array: Any = part[rows if isinstance(rows, slice) else rows.numpy()]
    if issparse(array):
        array = array.toarray()
    if array.dtype.itemsize > 8:  # longer than any that torch has
        array = array.astype(np.float64)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _is_blocks(A: Matrix) -> bool:
    if not isinstance(A, Sequence) or isinstance(A, str | bytes):
        return False
    return not len(A) or all(isinstance(a, Tensor | np.ndarray) or issparse(a) for a in A)


def _as_part(block: Matrix) -> Part:
    part: Part
    if isinstance(block, Tensor):
        strided = block.layout == torch.strided
        part = block.detach() if strided else _without_zeros(block.detach())
    elif issparse(block):
        part = csr_array(block)
    else:
        part = _as_array(block)
    kind = str(part.dtype).removeprefix("torch.")
    if "complex" in kind:
        raise InputError(f"Complex data not supported: the activations are {kind}; give real ones.")
    if part.ndim != 2:
        raise InputError(
            f"The activations have {part.ndim} dimensions; they must have 2 (rows, channels): "
            "Reshape your data."
        )
    return _as_tensor(part) if isinstance(part, np.ndarray) else part


def _as_array(block: Matrix) -> np.ndarray:
    try:
        array = np.asarray(block)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.dtype.kind not in "fiubc" or isinstance(block, dict):
        kind = getattr(block, "dtype", type(block).__name__)
        raise InputError(f"The activations are of type {kind}; give real tensors or arrays.")
    return array


def _as_tensor(array: np.ndarray) -> Part:
    """The array as a tensor, where torch can have it as it is."""
    strange = array.dtype.itemsize > 8 or not array.dtype.isnative
    if strange or any(step < 0 or step % array.dtype.itemsize for step in array.strides):
        return array
    with warnings.catch_warnings():
        # A read-only memory map is never written to here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _without_zeros(A: Tensor) -> Part:
    """A sparse tensor (rows, c) of any layout in SciPy's compressed sparse rows, on the CPU."""
    if A.ndim != 2 or A.is_complex():
        return A  # to be refused
    A = A.to_sparse_coo().coalesce().cpu()
    values = A.values()
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return csr_array((values.numpy(), A.indices().numpy()), shape=tuple(A.shape))
