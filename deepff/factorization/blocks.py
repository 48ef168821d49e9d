"""The activations as one tall matrix that is read by blocks of rows."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError

Matrix = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray]
# What is read instead of A: the places of some rows, ascending, and these rows (b, c), to
# other rows (b, c).
Transform = Callable[[slice | Tensor, Tensor], Tensor]

# Measured: a block this big stays in the cache from one product to the next, and is
# still long enough for the library calls on it to cost nothing beside the products.
CPU_BLOCK_BYTES = 6 * 2**20
ACCELERATOR_BLOCK_BYTES = 256 * 2**20


class RowBlocks:
    """One tall matrix (rows, c), given whole or as a sequence of blocks of rows.

    Reading yields blocks of its own size in float32 on `device`, wherever the given
    ones end, so results do not depend on how the rows were split. A block is a view
    where that is possible; nothing else is ever copied.

    Parameters
    ----------
    A : tensor or array (rows, c), or sequence of these with equal c
        Any real dtype; converted to float32 block by block.
    device : where to compute; None is where the (first) rows are.
    transform : applied to rows whenever they are read, so that a matrix which is A row by row,
        such as A·diag(weights), need not be held.
    power : the matrix read is A · 2^power, so that squares stay in float32's range.

    Attributes
    ----------
    n_rows, n_channels : int
    n_reads : int
        How often all rows have been read.

    Raises
    ------
    InputError
        Not two-dimensional, no rows or channels, unequal channels, or complex.
    """

    def __init__(
        self,
        A: Matrix,
        device: str | torch.device | None = None,
        transform: Transform | None = None,
    ) -> None:
        parts: Sequence[Tensor | np.ndarray] = (
            [A] if isinstance(A, Tensor | np.ndarray) else list(A)
        )
        if not parts:
            raise InputError("There are no activations: give at least one row.")
        self._parts = [_as_tensor(part) for part in parts]
        channels = sorted({part.shape[1] for part in self._parts})
        if len(channels) > 1:
            raise InputError(
                f"The blocks of activations have {channels[0]} and {channels[-1]} channels; "
                "they must all have the same."
            )
        self._ends = np.cumsum([len(part) for part in self._parts])
        self.n_rows, self.n_channels = int(self._ends[-1]), channels[0]
        if self.n_rows == 0 or self.n_channels == 0:
            raise InputError(
                f"The activations are {self.n_rows} rows × {self.n_channels} channels; "
                "there must be at least one of each."
            )
        self.device = torch.device(device) if device is not None else self._parts[0].device
        budget = CPU_BLOCK_BYTES if self.device.type == "cpu" else ACCELERATOR_BLOCK_BYTES
        self._block_rows = max(64, budget // (4 * self.n_channels))
        self._transform = transform
        self.power = 0
        self.n_reads = 0

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once: (their place, the block (b, c)), in order."""
        for start in range(0, self.n_rows, self._block_rows):
            stop = min(start + self._block_rows, self.n_rows)
            place = slice(start, stop)
            yield place, self._prepared(place, self._rows(start, stop))
        self.n_reads += 1

    def take(self, indices: Tensor) -> Tensor:
        """The rows (m, c) at ascending `indices` (m,), float32 on the device."""
        owner = np.searchsorted(self._ends, indices.numpy(), side="right")
        taken = []
        for i in np.unique(owner):
            part = self._parts[i]
            local = indices[torch.from_numpy(owner == i)] - (int(self._ends[i]) - len(part))
            taken.append(part.index_select(0, local.to(part.device)).to(self.device))
        return self._prepared(indices, taken[0] if len(taken) == 1 else torch.cat(taken))

    def anew(self, device: str | torch.device | None = None) -> "RowBlocks":
        """The same rows, unscaled and not read yet, on `device` (None: on the same)."""
        return RowBlocks(self._parts, device or self.device, self._transform)

    def _rows(self, start: int, stop: int) -> Tensor:
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


def as_row_blocks(A: "Matrix | RowBlocks", device: str | torch.device | None = None) -> RowBlocks:
    """`A` as blocks of rows on `device`, to be read anew; it may be `RowBlocks` already."""
    return A.anew(device) if isinstance(A, RowBlocks) else RowBlocks(A, device)


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
    """Raise InputError unless 1 ≤ n_components ≤ rows and channels of the matrix."""
    if isinstance(n_components, bool) or not isinstance(n_components, int | np.integer):
        raise InputError(f"n_components is {n_components!r}; it must be a whole number.")
    if not 1 <= n_components <= min(rows.n_rows, rows.n_channels):
        raise InputError(
            f"n_components is {n_components}; it must be from 1 to the smaller of the "
            f"{rows.n_rows} rows and {rows.n_channels} channels."
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
