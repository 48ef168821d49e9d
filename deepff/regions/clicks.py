"""What one click takes: the connected region around it that its edges and the set's maps bound.

A photograph is cut into superpixels. How much each is like the click, and unlike what stays as it
is, goes along the weak edges between them (a random walker with priors: Grady, CVPR 2005). Of the
regions at several levels, the one with the strongest edges around it is taken, if it is not much
smaller than the click is deep. What is surely right by the set's maps changes near the click alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse.csgraph import connected_components as graph_components
from scipy.sparse.linalg import spsolve

# What a click sees has about this many pixels on its longest side, and this many superpixels.
CLICK_SIDE, _SUPERPIXELS = 320, 1200
# How much a difference counts: in L*a*b*, in maps whose variances sum to one, in log odds.
_COLOR, _MAPS, _ODDS = np.array([0.07, 0.1, 0.1]), 3.0, 0.5
_LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# The prior's part of log odds that somebody's click contradicts; the pull to the beliefs; the
# affinity of a whole piece to nothing around it.
_PRIOR, _PULL, _NOTHING = 1.0, 0.1, 0.35
# A click changes what is within this many of its distances from the target's border, and 2 pixels.
_DEEPER, _AT_LEAST = 2.0, 2.0
# Pixels whose log odds contradict the change by this much stay as they are far from the click: this
# share of their distance from it counts like depth.
_CONTRADICTED, _ACROSS = 2.0, 0.5
# A region of fewer pixels than this multiple of the click's squared depth costs more: by this
# factor for each e-fold, and by at least this much affinity.
_AREA, _TOO_SMALL, _LEAST_COST = 4.0, 2.0, 0.05
_FIXED = 1e6
_BOX_ROUNDS = 3

Pixel = tuple[int, int]  # row and column


@dataclass(frozen=True)
class ClickScene:
    """What clicks on a photograph go by."""

    superpixels: np.ndarray  # (h, w)
    features: np.ndarray  # (h · w, c), in units in which a difference of 1 is a clear one
    log_odds: np.ndarray  # (h · w,) of the object


def click_scene(photo: np.ndarray, maps: np.ndarray, likely: np.ndarray) -> ClickScene:
    """A scene of a photograph (h, w, 3) uint8, the roots of heat maps (k, h, w), whose variances
    in the whole image sum to one, and how likely the object is, (h, w)."""
    from skimage.color import rgb2lab
    from skimage.segmentation import slic

    superpixels = slic(photo, _SUPERPIXELS, compactness=10, sigma=0.5, start_label=0)
    likely = likely.clip(0.02, 0.98)
    log_odds = np.log(likely / (1 - likely))
    channels = [
        rgb2lab(photo) * _COLOR,
        _MAPS * np.moveaxis(maps, 0, 2),
        _ODDS * log_odds[..., None],
    ]
    features = np.concatenate(channels, 2).reshape(log_odds.size, -1).astype(np.float32)
    return ClickScene(superpixels, features, log_odds.ravel())


def clicked(
    scene: ClickScene,
    values: np.ndarray,
    pixel: Pixel,
    target: int,
    sure: Sequence[Pixel] = (),
) -> np.ndarray:
    """Where a click changes a label map, (h, w) bool: around it, in pixels of the label there. They
    become ``target``. Pixels clicked earlier, ``sure``, stay as they are."""
    label = values[pixel]
    nodes = _Nodes.of(scene, values)
    click = nodes.numbers[pixel]
    may_change = nodes.labels == label
    # Depth below the border with what has the target's label already: most errors are as thick as
    # the click, in their middle, is deep.
    is_target = values == target
    log_odds = (int(target > 0) - int(label > 0)) * scene.log_odds
    far = depth = np.ones(values.shape)
    if is_target.any():
        depth = ndimage.distance_transform_edt(~is_target)
        rows, columns = np.ogrid[: values.shape[0], : values.shape[1]]
        across = np.hypot(rows - pixel[0], columns - pixel[1]) * _ACROSS
        far = np.maximum(depth, across * (log_odds < -_CONTRADICTED).reshape(values.shape))
    limit, area = _DEEPER * depth[pixel] + _AT_LEAST, _AREA * depth[pixel] ** 2
    odds = np.exp(_PRIOR * (nodes.mean @ log_odds))
    similar = nodes.kernel[click]
    belief = _beliefs(nodes, similar * may_change, (1 - similar) * may_change, odds)
    belief[nodes.labels == target], belief[click] = 1, 1
    fixed = (nodes.labels != target) & (~may_change | (nodes.mean @ far.ravel() > limit))
    for other in sure:
        fixed[nodes.numbers[other]] |= may_change[nodes.numbers[other]]
    belief[fixed] = 0
    belief[click], fixed[click] = 1, True
    walked = np.where(may_change, _walked(nodes, belief, fixed), 0)
    return _best(nodes, walked, click, may_change, area)[nodes.numbers] & (far <= limit)


def boxed(scene: ClickScene, values: np.ndarray, box: tuple[Pixel, Pixel]) -> np.ndarray:
    """What stands out in a box from what is around it, (h, w) bool; of a label map's background.
    The box is its first and last pixel."""
    (top, left), (bottom, right) = box
    inside = np.zeros(values.shape, bool)
    inside[top : bottom + 1, left : right + 1] = True
    nodes = _Nodes.of(scene, (values > 0) * 2 + inside)
    may_change, around = nodes.labels == 1, nodes.labels == 0
    odds = np.exp(_PRIOR * (nodes.mean @ scene.log_odds))
    belief = may_change.astype(float)
    for _ in range(_BOX_ROUNDS):
        others = np.where(may_change, 1 - belief, around)
        belief = _beliefs(nodes, np.where(may_change, belief, 0), others, odds) * may_change
    fixed = nodes.labels != 1
    return (may_change & (_walked(nodes, belief, fixed) > 0.5))[nodes.numbers]


@dataclass(frozen=True)
class _Nodes:
    """Superpixels cut along a label map's borders."""

    numbers: np.ndarray  # (h, w): each pixel's node
    labels: np.ndarray  # (n,)
    counts: np.ndarray  # (n,) pixels
    mean: sparse.csr_matrix  # (n, h · w): the mean over each node
    distances: np.ndarray  # (n, n): squared, between their features
    edges: np.ndarray  # (2, m): the nodes that touch
    lengths: np.ndarray  # (m,): along how many pixels

    @classmethod
    def of(cls, scene: ClickScene, values: np.ndarray) -> "_Nodes":
        keys, flat = np.unique(scene.superpixels * 256 + values, return_inverse=True)
        flat, n = flat.ravel(), len(keys)
        counts = np.bincount(flat, minlength=n)
        mean = sparse.csr_matrix((1 / counts[flat], (flat, np.arange(flat.size))), (n, flat.size))
        features = (mean @ scene.features).astype(np.float32)
        squares = np.square(features).sum(1)
        distances = np.maximum(squares[:, None] + squares - 2 * features @ features.T, 0)
        numbers = flat.reshape(values.shape)
        neighbors = (numbers[:, 1:], numbers[:, :-1]), (numbers[1:], numbers[:-1])
        pairs = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in neighbors], 1)
        pairs = np.sort(pairs[:, pairs[0] != pairs[1]], 0)
        codes, lengths = np.unique(pairs[0] * n + pairs[1], return_counts=True)
        edges = np.stack([codes // n, codes % n])
        return cls(numbers, keys % 256, counts, mean, distances, edges, lengths)

    @cached_property
    def kernel(self) -> np.ndarray:
        """How similar nodes are, (n, n) in [0, 1]."""
        return np.exp(-self.distances / 2)

    @property
    def affinities(self) -> np.ndarray:
        """How similar the two nodes of each edge are, (m,)."""
        return self.kernel[self.edges[0], self.edges[1]]


def _beliefs(nodes: _Nodes, those: np.ndarray, others: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """How likely nodes are like those with the one weight and unlike those with the other, (n,)."""
    these, weights = those * nodes.counts, others * nodes.counts
    that = odds * (nodes.kernel @ these) / max(these.sum(), 1e-6)
    return that / (that + nodes.kernel @ weights / max(weights.sum(), 1e-6) + 1e-3 * (1 + odds))


def _walked(nodes: _Nodes, belief: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """The x with the least Σ w_ij (x_i − x_j)² + Σ g_i (x_i − belief_i)², (n,)."""
    n = len(belief)
    weights = nodes.affinities * nodes.lengths / np.median(nodes.lengths)
    one_way = sparse.coo_matrix((weights, nodes.edges), (n, n))
    graph = (one_way + one_way.T).tocsc()
    pull = np.where(fixed, _FIXED, _PULL)
    degrees = np.asarray(graph.sum(1)).ravel()
    return spsolve((sparse.diags(degrees + pull) - graph).tocsc(), pull * belief)


def _best(
    nodes: _Nodes, walked: np.ndarray, click: int, may_change: np.ndarray, area: float
) -> np.ndarray:
    """Of the connected regions around the click at the levels, the one with the strongest edges.
    Fewer pixels than ``area`` count against it."""
    n = len(walked)
    free = may_change[nodes.edges].all(0)
    edges, affinities, lengths = nodes.edges[:, free], nodes.affinities[free], nodes.lengths[free]
    best, best_cost = np.zeros(n, bool), np.inf
    for level in _LEVELS:
        high = walked > level
        high[click] = True
        inside = edges[:, high[edges].all(0)]
        graph = sparse.coo_matrix((np.ones(inside.shape[1]), inside), (n, n))
        _, pieces = graph_components(graph, directed=False)
        region = pieces == pieces[click]
        around = region[edges[0]] != region[edges[1]]
        cost = np.average(affinities[around], weights=lengths[around]) if around.any() else _NOTHING
        cost = cost * (1 + abs(np.log(level / (1 - level))) / 3) + _LEAST_COST
        cost *= 1 + _TOO_SMALL * max(0.0, np.log(area / nodes.counts[region].sum()))
        if cost < best_cost:
            best, best_cost = region, cost
    return best
