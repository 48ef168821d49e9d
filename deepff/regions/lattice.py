"""Gaussian sums over many points at once, on the permutohedral lattice, in PyTorch."""

import math
import operator
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from deepff.errors import InputError


class PermutohedralLattice:
    """Sums over points weighted by a Gaussian of their distance, in time linear in the points.

    Adams, Baek & Davis, *Fast High-Dimensional Filtering Using the Permutohedral Lattice*,
    Eurographics 2010. The lattice is the integer points of the hyperplane Σx = 0 in d + 1
    dimensions whose coordinates are congruent modulo d + 1; every point lies in a simplex of d + 1
    vertices. A point's values are shared among these vertices, blurred over the lattice's
    neighbours, and read off the same vertices.

    Parameters
    ----------
    features : Tensor, (B, d, N)
        N points for each of B images, in units of the Gaussian's standard deviation.

    Raises
    ------
    InputError
        The points are spread over more cells than 64 bits can number.

    Attributes
    ----------
    weights : Tensor, (d + 1, B · N)
        The share of each point that each vertex of its simplex gets: its barycentric coordinates.
    """

    def __init__(self, features: Tensor) -> None:
        n_images, d, _ = features.shape
        embedded = _embed(features.transpose(0, 1).flatten(1))

        # The nearest vertex whose coordinates are multiples of d + 1, in units of d + 1.
        nearest = embedded.round()
        order = _ranks(embedded - nearest) - nearest.sum(0).to(torch.int8)
        # Rounding is less than d + 1 ranks away from the hyperplane.
        above, below = order > d, order < 0
        nearest += above.to(nearest.dtype) - below.to(nearest.dtype)
        order += (d + 1) * (below.to(torch.int8) - above.to(torch.int8))
        places = order.long()
        offset = embedded - nearest

        ascending = torch.empty_like(offset).scatter_(0, places, offset)
        self.weights = ascending - ascending.roll(1, 0)
        self.weights[0] += 1

        strides, first = _number(nearest, n_images)
        # From a vertex to the next of the simplex, in ascending order of the offset.
        steps = torch.empty_like(places, dtype=strides.dtype)
        steps.scatter_(0, places, strides[:, None].expand_as(places))
        simplices, own = _simplices(first, order)
        corners = first[simplices] + functional.pad(
            steps[:-1, simplices].cumsum(0, dtype=strides.dtype), (0, 0, 1, 0)
        )
        vertices, places = corners.unique(return_inverse=True)
        # Half the memory of 64 bits, and read twice as fast.
        self._corners = places.to(torch.int32)[:, own].flatten()
        self._neighbors = _neighbors(vertices, strides)

    @property
    def n_bytes(self) -> int:
        """What it takes in memory."""
        return sum(held.nbytes for held in (self.weights, self._corners, self._neighbors))

    def filter(self, values: Tensor) -> Tensor:
        """Sum the values of all points, weighted by the Gaussian, at every point.

        Parameters
        ----------
        values : Tensor, (B, labels, N)

        Returns
        -------
        Tensor, (B, labels, N)
            Up to a factor that is the same for all points.
        """
        n_images, n_labels, n_points = values.shape
        shared = self.weights * values.transpose(0, 1).reshape(n_labels, 1, -1)
        on_lattice = shared.new_zeros(n_labels, self._neighbors.shape[-1])
        # 32 bits are slow here, on a CPU.
        on_lattice.index_add_(1, self._corners.long(), shared.flatten(1))
        for up, down in self._neighbors:
            beside = on_lattice.index_select(1, up) + on_lattice.index_select(1, down)
            on_lattice = on_lattice + 0.5 * beside
        read = on_lattice.index_select(1, self._corners).view(shared.shape)
        filtered = (self.weights * read).sum(1)
        return filtered.view(n_labels, n_images, n_points).transpose(0, 1)


def _embed(features: Tensor) -> Tensor:
    """Points (d, N) in the lattice's hyperplane, (d + 1, N), in units of d + 1.

    Scaled as Adams et al. do, so that sharing, blurring and reading together have a standard
    deviation of 1.
    """
    d = len(features)
    i = torch.arange(1, d + 1, device=features.device, dtype=features.dtype)
    basis = torch.ones(d + 1, d, device=features.device, dtype=features.dtype).triu()
    basis[1:] -= torch.diag(i)
    return (basis * math.sqrt(2 / 3) / (i * (i + 1)).sqrt()) @ features


def _ranks(values: Tensor) -> Tensor:
    """Each value's place among those of its column, from the smallest up; no two share one."""
    ranks = torch.zeros_like(values, dtype=torch.int8)
    for i in range(1, len(values)):
        not_above = values[:i] <= values[i]
        ranks[i] += not_above.sum(0, dtype=torch.int8)
        ranks[:i] += ~not_above
    return ranks


def _number(nearest: Tensor, n_images: int) -> tuple[Tensor, Tensor]:
    """Number the lattice's points so that a step along an axis always adds the same.

    The steps u_j = (1, …, 1, −d, 1, …, 1), with −d in place j, are a basis of the lattice for
    j < d, and u_d = −Σ u_j. A lattice point's coordinates in it are (x_d − x_j) / (d + 1).

    Parameters
    ----------
    nearest : Tensor, (d + 1, B · N)
        Vertices in units of d + 1, image by image; whole numbers.
    n_images : int

    Returns
    -------
    strides : Tensor, (d + 1,)
        What a step along each u_j adds; int32 if that holds the numbers of all vertices, else
        int64.
    numbers : Tensor, (B · N,)
        Of the vertices given, of the same type. Images have no number in common.
    """
    coordinates = nearest[-1] - nearest[:-1]
    # A simplex reaches one step beyond its first vertex, and its neighbours one more.
    lowest = coordinates.amin(1, keepdim=True) - 2
    extents = [int(extent) for extent in (coordinates.amax(1) + 3 - lowest[:, 0]).tolist()]
    *strides, per_image = accumulate(extents, operator.mul, initial=1)
    # The numbers of the steps' ends stay within the extents too. 32 bits sort faster.
    total = per_image * n_images
    if total > torch.iinfo(torch.int64).max:
        raise InputError(
            "the standard deviations of the dense CRF are too small to number the lattice's points "
            "with 64 bits; give larger ones"
        )
    dtype = torch.int32 if total <= torch.iinfo(torch.int32).max else torch.int64
    axes = torch.tensor([*strides, -sum(strides)], dtype=dtype, device=nearest.device)
    image = torch.arange(n_images, device=nearest.device, dtype=dtype)[:, None] * per_image
    numbers = ((coordinates - lowest).to(dtype) * axes[:-1, None]).sum(0, dtype=dtype)
    return axes, (numbers.view(n_images, -1) + image).flatten()


def _simplices(first: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """A point of each simplex, and the simplex of each point.

    Neighbouring pixels lie in the same ones, so that there are far fewer corners of simplices than
    of points to sort.

    Parameters
    ----------
    first : Tensor, (N,)
        Numbers of the points' first vertices.
    order : Tensor, (d + 1, N)
        Their coordinates' order, which with the first vertex says which simplex it is.
    """
    n_axes = len(order)
    _, start = first.unique(return_inverse=True)
    code = start
    for axis in range(1, n_axes):
        code = code * n_axes + order[axis]
    simplices, own = code.unique(return_inverse=True)
    points = torch.arange(len(first), device=first.device)
    one = torch.zeros(len(simplices), dtype=torch.int64, device=first.device)
    return one.scatter_reduce_(0, own, points, "amax"), own


def _neighbors(vertices: Tensor, strides: Tensor) -> Tensor:
    """Places of each vertex's two neighbours along each axis, (d + 1, 2, M + 1), int32.

    The place after the last stands for all vertices that no point uses; it stays at zero.

    Parameters
    ----------
    vertices : Tensor, (M,)
        Numbers in ascending order.
    strides : Tensor, (d + 1,)
        From :func:`_number`, of the same type.
    """
    outside = len(vertices)
    wanted = vertices + strides[:, None]
    place = torch.searchsorted(vertices, wanted).clamp_max(outside - 1)
    up = functional.pad(place.where(vertices[place] == wanted, outside), (0, 1), value=outside)
    own = torch.arange(outside + 1, device=vertices.device, dtype=torch.int32).expand_as(up)
    down = torch.full_like(up, outside, dtype=torch.int32).scatter_(1, up, own)
    down[:, outside] = outside
    return torch.stack([up.to(torch.int32), down], dim=1)
