"""Is it there? Scores of the pieces of objects' maps, by the instances that each kind is known by.

A piece is connected in the object's map, thresholded by Otsu in its image, and parted where it has
a narrow neck (:mod:`deepff.regions.components`). Its feature is the mean of the head layer's
activations over it, weighted by the map.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.discovery.kinds import cells_of, weighted_mean
from deepff.options import MIN_SCORE
from deepff.regions.components import things_in
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.known_instances import KnownInstances, Negatives
from deepff.results.sampling import covering
from deepff.runtime.distributed import gather_rows, rows_before

# The most instances of a kind that a bank keeps, and images that show none.
_MAX_KNOWN = 300


class _Piece(NamedTuple):
    kind: int
    mask: Tensor  # (h, w) bool, on the map's grid
    feature: Tensor  # (c,), of length 1


def with_presence(objects: Factorization, head: Activations) -> Factorization:
    """The objects of a set with the instances that each kind is known by, and scores of all pieces.
    An image's pieces are scored by other images' instances. Over several ranks the maps are of all
    their images, and ``head`` is of this rank's."""
    before, total = rows_before(len(head.images))
    pieces = [_pieces(objects.heatmaps, before + i, head, i) for i in range(len(head.images))]
    step = max(1, -(-total // _MAX_KNOWN))
    rows = [torch.zeros(0, 2 * head.channels + 2)]
    for i in range((-before) % step, len(pieces), step):
        background = _background(objects.heatmaps, before + i, pieces[i], head, i)
        for piece in _largest(pieces[i]):
            about = background.new_tensor([float(piece.kind), float(before + i)])
            rows.append(torch.cat([piece.feature, background, about])[None].cpu())
    table = gather_rows(torch.cat(rows))
    # A bank keeps 16 bits of features, and scores are to be the same before and after it is saved.
    features, backgrounds = table[:, :-2].half().float().chunk(2, dim=1)
    assert head.source is not None
    known = KnownInstances(features, backgrounds, table[:, -2].long(), head.source)
    known_images = table[:, -1].long()
    scores = _score_maps(objects.heatmaps, before, pieces, known, known_images)
    return replace(objects, known=known, scores=scores)


def with_scores(objects: Factorization, head: Activations, known: KnownInstances) -> Factorization:
    """Objects in new images with the scores of their pieces, by the instances of their bank. What
    two kinds claim is of the higher score; a kind without anything left is taken out."""
    heatmaps = objects.heatmaps
    pieces = [_pieces(heatmaps, i, head, i) for i in range(len(head.images))]
    scores = _score_maps(heatmaps, 0, pieces, known)
    present = torch.stack([scores.grid(i).flatten(1).any(1) for i in range(len(scores))])
    return replace(
        objects,
        known=known,
        scores=scores,
        heatmaps=_only(heatmaps, present),
        probabilities=objects.probabilities and _only(objects.probabilities, present),
    )


def negatives_in(
    objects: HeatMaps, head: Activations, known: KnownInstances
) -> tuple[Negatives, int]:
    """What the maps mark in images without the things, and in how many images it is likely one."""
    step = max(1, -(-len(head.images) // _MAX_KNOWN))
    rows, n_likely = [torch.zeros(0, head.channels + 2)], 0
    for i in range(len(head.images)):
        pieces = _pieces(objects, i, head, i)
        scores = (float(known.scores(piece.feature[None], piece.kind)) for piece in pieces)
        n_likely += max(scores, default=0.0) >= MIN_SCORE
        for piece in pieces if i % step == 0 else ():
            about = piece.feature.new_tensor([float(piece.kind), float(i)])
            rows.append(torch.cat([piece.feature, about])[None].cpu())
    table = torch.cat(rows)
    features = table[:, :-2].half().float()
    return Negatives(features, table[:, -2].long(), table[:, -1].long()), n_likely


def _only(maps: HeatMaps, present: Tensor) -> HeatMaps:
    """The maps without the factors that are not `present` in an image, (n, k) bool."""
    if present.all() or maps.n_factors == 1:
        return maps
    cells = torch.tensor([height * width for height, width in maps.grids])
    rows = present.cpu().repeat_interleave(cells, 0).to(maps.coefficients)
    return maps.replace(coefficients=maps.coefficients * rows)


def _pieces(maps: HeatMaps, index: int, head: Activations, image: int) -> list[_Piece]:
    """The pieces of all kinds in an image, ``index`` in the maps and ``image`` in the head."""
    record, rows, extent = head.images[image], head.image_rows[image], maps.extents[index]
    values, pieces = maps.grid(index), []
    for kind, numbers in enumerate(things_in(maps, index, values)):
        for number in range(1, numbers.max() + 1):
            mask = torch.from_numpy(numbers == number).to(values.device)
            weights = cells_of(covering((values[kind] * mask)[None], extent), record)[0]
            pieces.append(_Piece(kind, mask, weighted_mean(rows, weights)))
    return pieces


def _background(
    maps: HeatMaps, index: int, pieces: list[_Piece], head: Activations, image: int
) -> Tensor:
    """The feature of what is in no piece of an image: (c,)."""
    outside = torch.ones_like(maps.grid(index)[0])
    for piece in pieces:
        outside[piece.mask] = 0
    weights = cells_of(covering(outside[None], maps.extents[index]), head.images[image])[0]
    return weighted_mean(head.image_rows[image], weights)


def _largest(pieces: list[_Piece]) -> list[_Piece]:
    """The largest piece of each kind in an image."""
    by_size = sorted(pieces, key=lambda piece: int(piece.mask.sum()))
    return list({piece.kind: piece for piece in by_size}.values())


def _score_maps(
    maps: HeatMaps,
    before: int,
    pieces: list[list[_Piece]],
    known: KnownInstances,
    known_images: Tensor | None = None,
) -> HeatMaps:
    """The score of each cell's piece, (rows of all images, k); 0 outside of pieces. ``pieces`` are
    those of this rank's images, ``before`` the number of images of lower ranks. Instances known
    from an image (`known_images`) are not compared with its own."""
    rows = [maps.coefficients[:0]]
    for i, of_image in enumerate(pieces, before):
        painted = torch.zeros_like(maps.grid(i))
        is_claimed = torch.zeros_like(painted[0], dtype=torch.bool)
        scored = []
        for piece in of_image:
            left_out = None if known_images is None else known_images == i
            scored.append((float(known.scores(piece.feature[None], piece.kind, left_out)), piece))
        for score, piece in sorted(scored, key=lambda pair: -pair[0]):
            if (piece.mask & is_claimed).sum() * 2 <= piece.mask.sum():
                painted[piece.kind][piece.mask] = score
                is_claimed |= piece.mask
        rows.append(painted.flatten(1).T)
    coefficients = gather_rows(torch.cat(rows))
    return maps.replace(coefficients=coefficients, scale=torch.ones(maps.n_factors))
