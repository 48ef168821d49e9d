"""A factorised set for one number of factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepff.results.heatmaps import HeatMaps


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
        ‖A − HW‖ / ‖A‖, Frobenius.
    n_iter : int
        Iterations that the solver took.
    """

    components: Tensor
    heatmaps: HeatMaps
    relative_error: float
    n_iter: int

    @property
    def coefficients(self) -> Tensor:
        """H, shape (rows, k)."""
        return self.heatmaps.coefficients

    @property
    def energy_shares(self) -> Tensor:
        """Each factor's share of the energy, ‖hⱼ‖·‖wⱼ‖ over the sum of all: (k,), sum 1."""
        energies = self.coefficients.norm(dim=0) * self.components.norm(dim=1)
        return energies / energies.sum().clamp_min(torch.finfo(energies.dtype).tiny)
