"""A factorised set for one number of factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepff.results.classes import FactorClasses
from deepff.results.heatmaps import HeatMaps
from deepff.results.pixel_classifier import PixelClassifier


@dataclass(frozen=True)
class Factorization:
    """A ≈ H W for one number of factors.

    Attributes
    ----------
    components : Tensor, shape (k, c)
        W.
    heatmaps : HeatMaps
        The columns of H as maps.
    relative_error : float
        ‖A − HW‖ / ‖A‖, Frobenius; NaN where H is a classifier's.
    n_iter : int
        Iterations that the solver took.
    classifier : PixelClassifier or None
        What the regions of the set taught (:mod:`deepff.regions.pixel_classifier`), of one class a
        factor.
    classified : HeatMaps or None
        The classifier's probabilities, on its own cells.
    classes : FactorClasses or None
        What the network takes the factors for, where that is known.
    """

    components: Tensor
    heatmaps: HeatMaps
    relative_error: float
    n_iter: int
    classifier: PixelClassifier | None = None
    classified: HeatMaps | None = None
    classes: FactorClasses | None = None

    @property
    def coefficients(self) -> Tensor:
        """H, shape (rows, k)."""
        return self.heatmaps.coefficients

    @property
    def energy_shares(self) -> Tensor:
        """Each factor's share of the energy, ‖hⱼ‖·‖wⱼ‖ over the sum of all: (k,), sum 1."""
        energies = self.coefficients.norm(dim=0) * self.components.norm(dim=1)
        return energies / energies.sum().clamp_min(torch.finfo(energies.dtype).tiny)
