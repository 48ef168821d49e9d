"""What may be given as A, and its rows as dense tensors."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from deepff.errors import InputError

# Tensors and arrays, dense or sparse (SciPy's too), data frames, lists of lists of numbers; or a
# sequence of tensors or of arrays, blocks of rows with equal c.
Matrix: TypeAlias = Any
# What is held of A: tensors are read as they are, what is no tensor becomes one block by block.
Part: TypeAlias = Tensor | np.ndarray | csr_array


def as_parts(A: Matrix) -> list[Part]:
    """The blocks of rows (m, c) that A is given as, none of them copied where it is dense.

    Raises
    ------
    InputError
        A is not a real matrix, or a sequence of none.
    """
    blocks = list(A) if _is_blocks(A) else [A]
    if not blocks:
        raise InputError("There are no activations: give at least one row.")
    return [_as_part(block) for block in blocks]


def are_tensors(A: Matrix) -> bool:
    """Whether A is given as tensors, so that what is computed from it should be tensors."""
    blocks = A if _is_blocks(A) else [A]
    return any(isinstance(block, Tensor) for block in blocks)


def dense_rows(part: Part, rows: slice | Tensor) -> Tensor:
    """Some rows (b, c) of a part, in its own dtype or one that holds it; a view if possible.

    `rows` is a slice, or ascending numbers on the CPU.
    """
    if isinstance(part, Tensor):
        if isinstance(rows, slice):
            return part[rows]
        return part.index_select(0, rows.to(part.device))
    found: Any = part[rows if isinstance(rows, slice) else rows.numpy()]
    array = found.toarray() if issparse(found) else found
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
