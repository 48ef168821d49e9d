"""What factors matter for, as data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deepff.errors import InputError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Importance:
    """What the factors of one factorization matter for to the network's classes.

    Attributes
    ----------
    labels : tuple of str, m of them
        The classes: those that the network takes the images for, the most frequent first, or those
        that were asked for.
    names : tuple of str or None, k of them
        The factors' names.
    places : tuple of int, k of them
        The factors' places over k, by which they have their colours
        (:func:`deepff.discovery.choose_k.places_over_k`).
    images : tuple of int, n of them
        Which images of the set were run.
    logits : Tensor, (n, m)
        The classes' scores on the images.
    falls : Tensor, (n, k, m)
        How much they fall when the factor is taken out.
    is_of : Tensor, (n, m), bool
        Whether the image counts for the class: it is the network's first choice there, or no
        image's.
    sobol : Tensor, (k, m)
        Total Sobol indices of the factors (:mod:`deepff.naming.importance`), the mean over the
        class's images; at least 0.
    sensitivity : Tensor, (k, m)
        How much the score rises along the factor, by the gradient.
    agreement : Tensor, (k, m)
        The share of the class's images where it rises: TCAV's score, in [0, 1].
    p_values : Tensor, (k, m)
        How often the sensitivity to a random direction is as large, in (0, 1].
    """

    labels: tuple[str, ...]
    names: tuple[str | None, ...]
    places: tuple[int, ...]
    images: tuple[int, ...]
    logits: Tensor
    falls: Tensor
    is_of: Tensor
    sobol: Tensor
    sensitivity: Tensor
    agreement: Tensor
    p_values: Tensor

    def __repr__(self) -> str:
        of, over = len(self.names), len(self.images)
        return f"<Importance of {of} factors for {', '.join(self.labels)}, over {over} images>"

    @property
    def mean_falls(self) -> Tensor:
        """The mean of the falls over the class's images: (k, m)."""
        of = self.is_of[:, None].to(self.falls)
        return (self.falls * of).sum(0) / of.sum(0)

    def to_dataframe(self) -> pandas.DataFrame:
        """One row a class and factor, the class's most important factor first.

        Its columns are ``class``, ``factor``, ``name``, ``fall``, ``sobol``, ``sensitivity``,
        ``agreement`` and ``p_value``.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError("a table needs pandas: pip install 'deepff[notebook]'") from None
        return pandas.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; :meth:`from_dict` is the inverse."""
        return {
            field.name: value.tolist() if isinstance(value, Tensor) else list(value)
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Importance:
        """From what :meth:`to_dict` gave."""
        plain = ("labels", "names", "places", "images")
        held: dict[str, Any] = {
            name: tuple(value) if name in plain else torch.tensor(value)
            for name, value in values.items()
        }
        return cls(**held)

    def rows(self) -> list[dict[str, object]]:
        """The rows of :meth:`to_dataframe`."""
        falls = self.mean_falls
        return [
            {
                "class": label,
                "factor": j,
                "name": self.names[j],
                "fall": float(falls[j, c]),
                "sobol": float(self.sobol[j, c]),
                "sensitivity": float(self.sensitivity[j, c]),
                "agreement": float(self.agreement[j, c]),
                "p_value": float(self.p_values[j, c]),
            }
            for c, label in enumerate(self.labels)
            for j in torch.argsort(-falls[:, c], stable=True).tolist()
        ]

    def _repr_html_(self) -> str:
        from deepff.report.bars import importance_html

        return importance_html(self.rows(), self.places)
