"""What the factorizations share: scikit-learn's contract over blocks of rows."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Integral
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization.blocks import Matrix, RowBlocks, are_tensors, as_row_blocks
from deepff.runtime.distributed import from_first_rank, rows_before

# A tensor where A comes as tensors or `RowBlocks`, on the device where it was computed; otherwise a
# NumPy array.
Array: TypeAlias = Any


class Factorization(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A ≈ H W, computed in float32 whatever torch's defaults are, as a scikit-learn transformer.

    A is (rows, c): a tensor, array, sparse matrix or data frame, a list of lists of numbers, a
    sequence of tensors or arrays that are blocks of its rows, or `RowBlocks`. Results are tensors
    where A comes as tensors or `RowBlocks`, and arrays otherwise.
    """

    needs_non_negative: bool = False

    n_components: int
    device: str | torch.device | None
    memory: int | None
    components_: Array

    def fit(self, X: Matrix | RowBlocks, y: None = None) -> Self:
        """Find `components_` for X = A (rows, c); `y` is ignored.

        Raises
        ------
        InputError
            A is not a real matrix of finite values (some methods need all ≥ 0); k is more than its
            rows or channels; or a parameter is out of its range.
        """
        self._fitted(X)
        return self

    def fit_transform(self, X: Matrix | RowBlocks, y: None = None) -> Array:
        """`fit(X)`, then H (rows, k) for X; errors are those of `fit`."""
        rows, H = self._fitted(X)
        if H is None:
            with _plain_float32(rows.device):
                H = self._coefficients(rows, self._components(rows.device))
        return _as_input(X, H)

    def transform(self, X: Matrix | RowBlocks) -> Array:
        """H (rows, k) of X = A (rows, c) for the fitted `components_`.

        Raises
        ------
        InputError
            Before `fit`, for another number of channels, or for values that `fit` refuses.
        """
        self._check_fitted()
        rows = self._rows(X, reset=False)
        with _plain_float32(rows.device):
            H = self._coefficients(rows, self._components(rows.device))
        return _as_input(X, H)

    def inverse_transform(self, X: Matrix) -> Array:
        """H W (rows, c) for coefficients X = H (rows, k).

        Raises
        ------
        InputError
            Before `fit`, or if H is not a real matrix of k columns.
        """
        self._check_fitted()
        rows = as_row_blocks(X, self.device, self.memory)
        W = self._components(rows.device)
        if rows.n_channels != len(W):
            raise InputError(
                f"There are {rows.n_channels} coefficients per row, but {len(W)} components; give "
                "one coefficient per component."
            )
        with _plain_float32(rows.device):
            A = rows.coefficients(W.shape[1])
            for index, H in rows:
                A[index] = H @ W
        return _as_input(X, A)

    def _fit(self, rows: RowBlocks) -> tuple[Tensor, Tensor | None]:
        """Sets the fitted attributes except `components_`; returns these, and H if it is known."""
        raise NotImplementedError

    def _coefficients(self, rows: RowBlocks, W: Tensor) -> Tensor:
        """H (rows, k) for the components W (k, c)."""
        raise NotImplementedError

    def _fitted(self, X: Matrix | RowBlocks) -> tuple[RowBlocks, Tensor | None]:
        rows = self._rows(X, reset=True)
        check_n_components(self.n_components, rows)
        with _plain_float32(rows.device):
            W, H = self._fit(rows)
        self.components_ = _as_input(X, W)
        return rows, H

    def _rows(self, X: Matrix | RowBlocks, reset: bool) -> RowBlocks:
        rows = as_row_blocks(X, self.device, self.memory)
        try:
            # Data frames have names of channels.
            validate_data(
                self, X if hasattr(X, "columns") else rows, reset=reset, skip_check_array=True
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        if not reset and rows.n_channels != (n := self.components_.shape[1]):
            raise InputError(
                f"X has {rows.n_channels} features, but {type(self).__name__} is expecting {n} "
                "features as input."
            )
        return rows

    def _components(self, device: torch.device) -> Tensor:
        return torch.as_tensor(self.components_, dtype=torch.float32, device=device)

    def _check_fitted(self) -> None:
        if not hasattr(self, "components_"):
            raise UnfittedError(
                f"This {type(self).__name__} is not fitted yet; call fit before transform."
            )

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.needs_non_negative
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class UnfittedError(InputError, NotFittedError):
    """`transform` before `fit`."""


def check_n_components(n_components: int, rows: RowBlocks) -> None:
    """Raise InputError unless 1 ≤ n_components ≤ rows (of all ranks) and channels of the matrix."""
    if isinstance(n_components, bool) or not isinstance(n_components, Integral):
        raise InputError(f"n_components is {n_components!r}; it must be a whole number.")
    _, n_rows = rows_before(rows.n_rows)
    if not 1 <= n_components <= min(n_rows, rows.n_channels):
        raise InputError(
            f"{n_components} factors were asked for; their number (k, n_components) must be from 1 "
            f"to the smaller of the {n_rows} rows and {rows.n_channels} channels."
        )


def checked_seed(random_state: object) -> int | None:
    """The seed that a `random_state` is, or draws; None for None. Others raise InputError."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    is_seed = isinstance(random_state, Integral) and 0 <= int(random_state) < 2**32
    if random_state is not None and not is_seed:
        raise InputError(
            f"random_state is {random_state!r}; it must be a whole number from 0 to 2³² − 1, a "
            "numpy.random.RandomState or None."
        )
    return None if random_state is None else int(random_state)  # type: ignore[call-overload]


def seeded_generator(random_state: int | np.random.RandomState | None) -> torch.Generator:
    """A generator on the CPU, the same for every rank; of None, another one each time."""
    generator = torch.Generator("cpu")
    seed = checked_seed(random_state)
    if seed is None:
        drawn = torch.tensor(generator.seed() & (2**63 - 1), dtype=torch.int64, device="cpu")
        seed = int(from_first_rank(drawn))
    return generator.manual_seed(seed)


@contextmanager
def _plain_float32(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast: it would round products to half precision."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _as_input(X: Matrix | RowBlocks, values: Tensor) -> Array:
    return values if isinstance(X, RowBlocks) or are_tensors(X) else values.cpu().numpy()
