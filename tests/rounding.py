"""Tolerances that only float32's rounding decides, derived so that they hold on any processor."""

from typing import Any

import torch

EPSILON = torch.finfo(torch.float32).eps


def coefficient_rounding(A: Any, W: Any) -> float:
    """How far two solutions of H (rows, k) for one A (rows, c) and one W (k, c) may be apart.

    An entry of W Aᵀ is a sum of c products: rounding moves it by about √c epsilon · ‖a‖ ‖w‖. The
    solver also takes gradients below 1e-6 of the largest entry for zero. H = (W Wᵀ)⁻¹ W Aᵀ has both
    divided by the least eigenvalue of W Wᵀ. Where that is below a thousandth of the largest, the
    solver starts from zero, so that its answer does not depend on the start.
    """
    A, W = (torch.as_tensor(X).double() for X in (A, W))
    eigenvalues = torch.linalg.eigvalsh(W @ W.T)
    least = max(float(eigenvalues[0]), 1e-3 * float(eigenvalues[-1]))
    largest = float(A.norm(dim=1).max() * W.norm(dim=1).max())
    return (1e-6 + A.shape[1] ** 0.5 * EPSILON) * largest / least
