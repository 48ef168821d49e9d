"""The activations as one tall matrix that is read by blocks of rows."""

import copy
import math
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.sparse import SparseBlock
from deepff.runtime.distributed import is_distributed, rows_before
from deepff.runtime.files import reserve_space
from deepff.runtime.memory import available_memory

Matrix = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray]
# What is read instead of A: the places of some rows, ascending, and these rows (b, c), to
# other rows (b, c).
Transform = Callable[[slice | Tensor, Tensor], Tensor]

# Measured: a block this big stays in the cache from one product to the next, and is
# still long enough for the library calls on it to cost nothing beside the products.
CPU_BLOCK_BYTES = 3 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20
# Rows: float32 sums over more of them round visibly, where channels are few.
_LONGEST_CPU_BLOCK = 2048
# Two blocks, what is computed from them and the sample must fit in the memory that is given.
_BLOCK_SHARE = 16
# Measured on one and two threads, which the products with sparse blocks hardly use: these are
# faster where density, the share of entries that are not zero, times √threads is below this.
_SPARSE = 0.1
_SPARSE_SAMPLE = 64  # rows, or up to twice as many, that say what the density is
_SPARSE_BLOCKS = 16  # blocks at once: products with sparse ones do not depend on the cache
# Of the memory; where none is given, of a fixed size, for the result must not depend on what
# happens to be free.
_SPARSE_SHARE = 8
_SPARSE_MEMORY = 2**30


class RowBlocks:
    """One tall matrix (rows, c), given whole or as a sequence of blocks of rows.

    Reading yields blocks of its own size in float32 on `device`, wherever the given
    ones end, so results do not depend on how the rows were split. A block is a view
    where that is possible; nothing else is ever copied, but by `compress`.

    Parameters
    ----------
    A : tensor or array (rows, c), or sequence of these with equal c
        Any real dtype; converted to float32 block by block.
    device : where to compute; None is where the (first) rows are.
    transform : applied to rows whenever they are read, so that a matrix which is A row by row,
        such as A·diag(weights), need not be held.
    memory : bytes that reading and computing may take beside A itself; None is what is free.
        Where A is memory-mapped, larger than this or on another device, the next block is
        fetched while one is used.

    Attributes
    ----------
    power : int
        The matrix read is A · 2^power, so that squares stay in float32's range.
    memory : int
        The bound in bytes.
    n_rows, n_channels : int
    n_reads : int
        How often all rows have been read.

    Raises
    ------
    InputError
        Not two-dimensional, no rows or channels, unequal channels, complex; or memory below 1 MiB.
    """

    def __init__(
        self,
        A: Matrix,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
        memory: int | None = None,
    ) -> None:
        parts: Sequence[Tensor | np.ndarray] = (
            [A] if isinstance(A, Tensor | np.ndarray) else list(A)
        )
        if not parts:
            raise InputError("There are no activations: give at least one row.")
        self._mapped = any(isinstance(part, np.memmap) for part in parts)
        self._parts = [_as_tensor(part) for part in parts]
        channels = sorted({part.shape[1] for part in self._parts})
        if len(channels) > 1:
            raise InputError(
                f"The blocks of activations have {channels[0]} and {channels[-1]} channels; "
                "they must all have the same."
            )
        self._ends = np.cumsum([len(part) for part in self._parts])
        self.n_rows, self.n_channels = int(self._ends[-1]), channels[0]
        if self.n_channels == 0 or (self.n_rows == 0 and not is_distributed()):
            raise InputError(
                f"The activations are {self.n_rows} rows × {self.n_channels} channels; "
                "there must be at least one of each."
            )
        self.device = torch.device(device) if device is not None else self._parts[0].device
        self.memory = available_memory() if memory is None else memory
        if self.memory < 2**20:
            raise InputError(f"memory is {memory} bytes; it must be at least 1 MiB.")
        self._transform = transform
        self.power = 0
        self.n_reads = 0
        self._sparse_memory = (memory or _SPARSE_MEMORY) // _SPARSE_SHARE
        self._kept: list[tuple[slice, SparseBlock]] | None = None

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once: (their place, the block (b, c)), in order."""
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
        places = (slice(start, min(start + step, self.n_rows)) for start in starts)
        for place, block in self._fetch(places):
            yield place, self._prepared(place, block)
        self.n_reads += 1

    def compress(self) -> Iterator[tuple[slice, Tensor | SparseBlock]]:
        """Read all rows once; where nearly all entries are zero, keep the others for `read_again`.

        Only on the CPU, and only while what is kept is a small part of the memory: once it is
        more, it is dropped, and the rows that follow are yielded as they are.
        """
        kept: list[tuple[slice, SparseBlock]] | None = [] if self._mostly_zero() else None
        size = 0
        for place, block in self.read(1 if kept is None else _SPARSE_BLOCKS):
            if kept is None:
                yield place, block
                continue
            sparse = SparseBlock.of(block)
            size += sparse.n_bytes
            kept.append((place, sparse))
            if size > self._sparse_memory:
                kept = None
            yield place, sparse
        self._kept = kept

    def read_again(self, times: int = 1) -> Iterator[tuple[slice, Tensor | SparseBlock]]:
        """Read all rows once more, from what `compress` kept if it kept them."""
        if self._kept is None:
            yield from self.read(times)
        else:
            yield from self._kept
            self.n_reads += 1

    def _mostly_zero(self) -> bool:
        if self.device.type != "cpu" or self.n_rows == 0:
            return False
        step = max(1, self.n_rows // _SPARSE_SAMPLE)
        sample = self.take(torch.arange(0, self.n_rows, step))
        density = float((sample != 0).float().mean())
        n_bytes = 8 * density * self.n_rows * self.n_channels
        sparse = density * math.sqrt(torch.get_num_threads()) < _SPARSE
        return sparse and n_bytes < self._sparse_memory

    def take_again(self, indices: Tensor) -> Tensor | SparseBlock:
        """The rows (m, c) at ascending `indices` (m,), from what `compress` kept if it did."""
        if self._kept is None:
            return self.take(indices)
        return SparseBlock.joined([block for _, block in self._kept]).take(indices)

    def take(self, indices: Tensor) -> Tensor:
        """The rows (m, c) at ascending `indices` (m,), float32 on the device."""
        owner = np.searchsorted(self._ends, indices.numpy(), side="right")
        taken = [torch.empty(0, self.n_channels, device=self.device)]
        for i in np.unique(owner):
            part = self._parts[i]
            local = indices[torch.from_numpy(owner == i)] - (int(self._ends[i]) - len(part))
            taken.append(part.index_select(0, local.to(part.device)).to(self.device))
        return self._prepared(indices, taken[1] if len(taken) == 2 else torch.cat(taken))

    def anew(
        self, device: str | torch.device | None = None, memory: int | None = None
    ) -> "RowBlocks":
        """The same rows, unscaled and not read yet; None leaves device or memory as they are."""
        rows = copy.copy(self)
        rows.power = rows.n_reads = 0
        rows._kept = None
        rows.device = torch.device(device) if device is not None else self.device
        if memory:
            rows.memory, rows._sparse_memory = memory, memory // _SPARSE_SHARE
        return rows

    def coefficients(self, k: int, value: float = 0.0) -> Tensor:
        """H (rows, k) filled with `value`: in memory, or in a file where the memory is short."""
        if self.device.type != "cpu" or 4 * self.n_rows * k <= self.memory // 4:
            return torch.full((self.n_rows, k), value, device=self.device)
        # The map outlives the name of its file, and leaves nothing behind.
        with tempfile.NamedTemporaryFile(prefix="deepff-") as file:
            reserve_space(file, 4 * self.n_rows * k)
            H = torch.from_file(file.name, shared=True, size=self.n_rows * k)
        return H.fill_(value).view(self.n_rows, k)

    def _fetch(self, places: Iterable[slice]) -> Iterator[tuple[slice, Tensor]]:
        n_bytes = sum(part.numel() * part.element_size() for part in self._parts)
        elsewhere = any(part.device != self.device for part in self._parts)
        if not (self._mapped or elsewhere or n_bytes > self.memory):
            yield from ((place, self._rows(place)) for place in places)
            return
        with ThreadPoolExecutor(1) as pool:
            upcoming: deque[tuple[slice, Future[Tensor]]] = deque()
            for place in places:
                upcoming.append((place, pool.submit(self._fetched, place)))
                if len(upcoming) == 2:
                    first, fetched = upcoming.popleft()
                    yield first, fetched.result()
            yield from ((place, fetched.result()) for place, fetched in upcoming)

    def _fetched(self, place: slice) -> Tensor:
        """The rows at `place` on the device, in memory of their own."""
        rows = self._rows(place)
        if rows.device == self.device:
            return rows.to(torch.float32, copy=True)
        if self.device.type == "cuda" and rows.device.type == "cpu":
            rows = rows.pin_memory()
        return rows.to(self.device)

    def _rows(self, place: slice) -> Tensor:
        start, stop = place.start, place.stop
        pieces = []
        i = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            offset = int(self._ends[i]) - len(self._parts[i])
            end = min(stop, int(self._ends[i]))
            if end > start:
                pieces.append(self._parts[i][start - offset : end - offset])
                start = end
            i += 1
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _prepared(self, place: slice | Tensor, rows: Tensor) -> Tensor:
        rows = rows.to(self.device, torch.float32)
        if self._transform is not None:
            rows = self._transform(place, rows)
        return rows if self.power == 0 else torch.ldexp(rows, torch.tensor(self.power))


def as_row_blocks(
    A: "Matrix | RowBlocks",
    device: str | torch.device | None = None,
    memory: int | None = None,
) -> RowBlocks:
    """`A` as blocks of rows on `device`, to be read anew; it may be `RowBlocks` already."""
    if isinstance(A, RowBlocks):
        return A.anew(device, memory)
    return RowBlocks(A, device, memory=memory)


def sums(*shape: int, device: torch.device) -> Tensor:
    """Zeros in float64 to add to, on `device` where that has float64."""
    return torch.zeros(shape, dtype=torch.float64, device="cpu" if device.type == "mps" else device)


def check_finite(value: float) -> None:
    """Raise InputError if a value computed from all entries (which they poison) is not finite."""
    if not math.isfinite(value):
        raise InputError("The activations hold NaN or infinite values; all must be finite.")


def check_non_negative(low: float, high: float) -> None:
    """Raise InputError unless 0 ≤ low and high is finite (least and largest entry)."""
    check_finite(low)
    check_finite(high)
    if low < 0:
        raise InputError(
            f"The activations go down to {low:.4g}; NMF needs entries that are all ≥ 0, "
            "as after a ReLU."
        )


def check_n_components(n_components: int, rows: RowBlocks) -> None:
    """Raise InputError unless 1 ≤ n_components ≤ rows (of all ranks) and channels of the matrix."""
    if isinstance(n_components, bool) or not isinstance(n_components, int | np.integer):
        raise InputError(f"n_components is {n_components!r}; it must be a whole number.")
    _, n_rows = rows_before(rows.n_rows)
    if not 1 <= n_components <= min(n_rows, rows.n_channels):
        raise InputError(
            f"n_components is {n_components}; it must be from 1 to the smaller of the "
            f"{n_rows} rows and {rows.n_channels} channels."
        )


def check_fitted(estimator: object, rows: RowBlocks) -> None:
    """Raise InputError unless `estimator` is fitted to matrices with the channels of this one."""
    components = getattr(estimator, "components_", None)
    if components is None:
        name = type(estimator).__name__
        raise InputError(f"This {name} is not fitted yet; call fit before transform.")
    if rows.n_channels != components.shape[1]:
        raise InputError(
            f"The activations have {rows.n_channels} channels, but the components were fitted "
            f"to {components.shape[1]}; both must come from the same layer."
        )


def _as_tensor(part: Tensor | np.ndarray) -> Tensor:
    if isinstance(part, np.ndarray) and part.dtype.kind in "fiu":
        if not part.dtype.isnative:
            part = part.astype(part.dtype.newbyteorder("="))
        if part.dtype.itemsize > 8:
            part = part.astype(np.float64)
        with warnings.catch_warnings():
            # A read-only memory map is never written to here.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            part = torch.from_numpy(part)
    if not isinstance(part, Tensor) or part.is_complex():
        kind = part.dtype if isinstance(part, Tensor | np.ndarray) else type(part).__name__
        raise InputError(f"The activations are of type {kind}; give real tensors or arrays.")
    if part.ndim != 2:
        raise InputError(
            f"The activations have {part.ndim} dimensions; they must have 2 (rows, channels)."
        )
    return part.detach()
