"""The set at a glance, arranged like Figure 3 of Collins et al. (2018), and regions over photos."""

from collections.abc import Mapping, Sequence
from numbers import Integral

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import REDUCED_SIDE, read_reduced
from deepff.images.painting import factor_colors, outlines, overlay, stripes
from deepff.options import PictureStyle
from deepff.pictures.tree_drawing import colors_over_k
from deepff.regions.components import Box
from deepff.regions.part_names import factor_names, told_apart
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

PHOTO_SIDE = REDUCED_SIDE
MAX_COLUMNS = 8
_MOST_ASPECT = 2.2  # of a cell, width over height
_GAP = 6
_LABEL_WIDTH = 96
_SWATCH = 22
_FONT_SIZE = 20
_REGION_OPACITY = 0.55
_LINE_WIDTH = 3  # of boxes
_PLACEHOLDER_GRAY = 128


def figure(
    result: Run,
    images: int | Sequence[int] | None = None,
    k: int | None = None,
    factors: int | Sequence[int] | None = None,
    opacity: float = 0.8,
    height: int = 180,
    style: str = PictureStyle.STRONGEST,
) -> Image.Image:
    """Draw photos and heat maps as a grid with one column per image: `deepff.Result.plot`. Below
    the photos every k has a row that shows all its factors together; where there is a single k,
    each factor alone has a row as well. A legend names the colors."""
    n = len(result.names)
    indices = spread(n) if images is None else _listed(images)
    factors = None if factors is None else _listed(factors)
    if not indices or any(not 0 <= index < n for index in indices):
        raise InputError(f"images must be one or more indices from 0 to {n - 1}, not {indices}")
    if height < 16:
        raise InputError(f"rows of {height} pixels are too small; use 16 or more")
    if k is None and factors is not None:
        k = result.n_components
    shown = result.factorizations if k is None else {k: result.factorization(k)}
    if factors is not None and not (factors and all(0 <= j < min(shown) for j in factors)):
        raise InputError(f"factors are numbers from 0 to {min(shown) - 1}, not {list(factors)}")
    photos = [read_photo(result.images[i], max(PHOTO_SIDE, 2 * height))[0] for i in indices]
    colors = colors_over_k(result.factorizations)
    return compose(shown, indices, photos, colors, factors, opacity, height, style)


def _listed(numbers: int | Sequence[int]) -> list[int]:
    return [int(numbers)] if isinstance(numbers, int | Integral) else list(numbers)


def spread(n: int, most: int = MAX_COLUMNS) -> list[int]:
    """Indices of up to ``most`` of n images, spread evenly, first and last included."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(int).tolist()


def photo_shape(image_size: tuple[int, int], longer_side: int = PHOTO_SIDE) -> tuple[int, int]:
    """(height, width) of an image whose longer side is scaled to so many pixels."""
    height, width = (max(1, round(longer_side * side / max(image_size))) for side in image_size)
    return height, width


def read_photo(image: ImageRecord, longer_side: int = PHOTO_SIDE) -> tuple[np.ndarray, str | None]:
    """An image for display, uint8 (h, w, 3), and None; gray where it can't be read, and why."""
    height, width = photo_shape(image.size, longer_side)
    try:
        pixels = read_reduced(image.unchanged_origin(), longer_side, image.stretch).pixels
    except UnreadableImageError as error:
        return np.full((height, width, 3), _PLACEHOLDER_GRAY, np.uint8), str(error)
    photo = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
    if photo.shape[:2] != (height, width):  # a small image, or another than it was
        resized = Image.fromarray(photo).resize((width, height), Image.Resampling.BILINEAR)
        photo = np.asarray(resized)
    return photo, None


def compose(
    factorizations: Mapping[int, Factorization],
    indices: Sequence[int],
    photos: Sequence[np.ndarray],
    colors: Mapping[int, np.ndarray],
    factors: Sequence[int] | None = None,
    opacity: float = 0.8,
    height: int = 180,
    style: str = PictureStyle.STRONGEST,
) -> Image.Image:
    """Arrange :func:`figure` from photos that have been read."""
    cells = [_cell(photo, height) for photo in photos]
    rows = [("", cells)]
    for k, factorization in factorizations.items():
        maps, of_k = factorization.heatmaps, colors[k]
        shown = [] if factors is not None else [(f"k = {k}", [*range(k)])]
        if factors is not None or (len(factorizations) == 1 and k > 1):
            names = factor_names(k)
            shown += [(names[j], [j]) for j in (range(k) if factors is None else factors)]
        for label, chosen in shown:
            painted = [
                overlay(cell, values[chosen], of_k[chosen], opacity, style)
                for i, cell in zip(indices, cells, strict=True)
                for values in [maps.normalized(i, cell.shape[:2])]
            ]
            rows.append((label, painted))

    signed = any(factorization.heatmaps.signed for factorization in factorizations.values())
    k = max(factorizations)
    return _grid(rows, height, captions(factorizations[k]), colors[k], signed)


def pairs_figure(
    runs: tuple[Run, Run],
    similarity: Tensor,
    pairs: Sequence[tuple[int, int]],
    images: int | Sequence[int] | None,
    height: int,
) -> Image.Image:
    """Photos, and below them the two factors of each pair in a row each, in one color."""
    indices = spread(len(runs[0].names)) if images is None else _listed(images)
    cells = [_cell(read_photo(runs[0].images[i])[0], height) for i in indices]
    rows, colors = [("", cells)], factor_colors(len(pairs))
    for color, pair in zip(colors, pairs, strict=True):
        for name, run, k, j in zip(("first", "second"), runs, similarity.shape, pair, strict=True):
            maps = run.factorization(k).heatmaps.factor(j)
            each = zip(indices, cells, strict=True)
            painted = [overlay(c, maps.normalized(i, c.shape[:2]), color[None]) for i, c in each]
            rows.append((f"{name}: {j}", painted))
    legend = [f"{i} and {j}: {float(similarity[i, j]):.2f}" for i, j in pairs]
    return _grid(rows, height, legend, colors)


def attribution_figure(run: Run, image: int, mattered: HeatMaps, height: int) -> Image.Image:
    """A photo, each factor where it is, and in the row below each factor where it mattered; the
    maps of that, ``mattered``, are of this image alone."""
    k = mattered.n_factors
    factorization, colors = run.factorization(k), colors_over_k(run.factorizations)[k]
    photo = _cell(read_photo(run.images[image], max(PHOTO_SIDE, 2 * height))[0], height)
    rows = []
    there = factorization.heatmaps.alone(image)
    for label, maps in (("is there", there), ("mattered", mattered)):
        values = maps.normalized(0, photo.shape[:2])
        painted = [overlay(photo, values[j : j + 1], colors[j : j + 1]) for j in range(k)]
        rows.append((label, [photo, *painted]))
    return _grid(rows, height, captions(factorization), colors, mattered.signed)


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures below each other, on white."""
    size = (max(picture.width for picture in pictures), sum(picture.height for picture in pictures))
    canvas = Image.new("RGB", size, "white")
    top = 0
    for picture in pictures:
        canvas.paste(picture, (0, top))
        top += picture.height
    return canvas


def _grid(
    rows: Sequence[tuple[str, Sequence[np.ndarray]]],
    height: int,
    names: Sequence[str],
    colors: np.ndarray,
    signed: bool = False,
) -> Image.Image:
    """Labeled rows of pictures, in columns, and a legend of the factors below them."""
    font = ImageFont.load_default(size=_FONT_SIZE)
    widest = max(round(font.getlength(label)) for label, _ in rows)
    columns = [max(_LABEL_WIDTH, widest + 2 * _GAP)]
    for cell in rows[0][1]:
        columns.append(columns[-1] + cell.shape[1] + _GAP)
    legend = _legend(names, colors, signed, max(columns[-1], 480))
    grid_height = len(rows) * (height + _GAP)
    size = (max(columns[-1], legend.width), grid_height + legend.height)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for y, (label, row) in zip(range(0, grid_height, height + _GAP), rows, strict=True):
        draw.text((_GAP, y + height // 2), label, "black", font, anchor="lm")
        for x, cell in zip(columns, row, strict=False):
            canvas.paste(Image.fromarray(cell), (x, y + (height - cell.shape[0]) // 2))
    canvas.paste(legend, (0, grid_height))
    return canvas


def similar_figure(
    run: Run,
    image: int,
    place: tuple[float, float],
    heatmaps: HeatMaps,
    shown: Sequence[int],
    height: int = 180,
) -> Image.Image:
    """A place of an image, (x, y) in its pixels, ringed, and the images ``shown`` with their
    similarity to it, cosines in one map per image; ``height`` is in pixels, at least 16."""
    if not shown or height < 16:
        raise InputError("show 1 image or more, in rows of 16 pixels or more")
    side = max(PHOTO_SIDE, 2 * height)
    ringed = Image.fromarray(_cell(read_photo(run.images[image], side)[0], height))
    x, y = (
        at * scaled / size
        for at, scaled, size in zip(place, ringed.size, run.image_sizes[image][::-1], strict=True)
    )
    draw = ImageDraw.Draw(ringed)
    for radius, color in ((9, "black"), (8, "white"), (6, "black")):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=color)
    cells = [_cell(read_photo(run.images[i], side)[0], height) for i in shown]
    maps = [heatmaps.normalized(i, cell.shape[:2]) for i, cell in zip(shown, cells, strict=True)]
    # Cosines of any two patches are well above 0: the upper part tells places apart.
    lowest = float(min(cosines.min() for cosines in maps))
    span = max(1 - lowest, 1e-6)
    painted = [
        overlay(cell, ((cosines - lowest) / span).clamp(0, 1) ** 2, style=PictureStyle.MIXED)
        for cell, cosines in zip(cells, maps, strict=True)
    ]
    pictures = [np.asarray(ringed), *painted]
    canvas = Image.new("RGB", (sum(p.shape[1] + _GAP for p in pictures) + _GAP, height), "white")
    left = 0
    for number, picture in enumerate(pictures):
        canvas.paste(Image.fromarray(picture), (left, (height - picture.shape[0]) // 2))
        left += picture.shape[1] + (2 * _GAP if number == 0 else _GAP)
    return canvas


def _cell(photo: np.ndarray, row_height: int) -> np.ndarray:
    """The photo at the height of a row, or less where it would become too wide."""
    height, width = photo.shape[:2]
    scale = min(row_height / height, _MOST_ASPECT * row_height / width)
    size = (max(1, round(scale * width)), max(1, round(scale * height)))
    return np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BILINEAR))


def _legend(names: Sequence[str], colors: np.ndarray, signed: bool, width: int) -> Image.Image:
    """A swatch and a name for each factor, in as many lines as the width asks for."""
    font = ImageFont.load_default(size=_FONT_SIZE)
    entries = list(zip(names, colors, strict=True))
    if signed:
        swatch_stripes = np.where(stripes(_SWATCH, _SWATCH)[..., None], 90, 255)
        entries.append(("striped: negative", swatch_stripes))
    entry_width = round(max(font.getlength(label) for label, _ in entries)) + _SWATCH + 6 * _GAP
    per_line = max(1, (width - _LABEL_WIDTH) // entry_width)
    lines = -(-len(entries) // per_line)
    line_height = _SWATCH + 2 * _GAP
    canvas = Image.new("RGB", (width, lines * line_height + _GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for position, (label, color) in enumerate(entries):
        line, column = divmod(position, per_line)
        x, y = _LABEL_WIDTH + column * entry_width, line * line_height + _GAP
        swatch = np.broadcast_to(color, (_SWATCH, _SWATCH, 3)).astype(np.uint8)
        canvas.paste(Image.fromarray(swatch), (x, y))
        draw.text((x + _SWATCH + _GAP, y + _SWATCH // 2), label, "black", font, anchor="lm")
    return canvas


def captions(factorization: Factorization) -> list[str]:
    """Factors' names with the network's, numbered where equal: "factor 0: African elephant"."""
    plain = factor_names(len(factorization.components))
    if factorization.classes is None:
        return plain
    names = told_apart(factorization.classes.names)
    pairs = zip(plain, names, strict=True)
    return [factor if name is None else f"{factor}: {name}" for factor, name in pairs]


def region_picture(
    photo: np.ndarray, labels: np.ndarray, boxes: Sequence[tuple[int, Box, float | None]] = ()
) -> np.ndarray:
    """A photo, uint8 (h, w, 3) of any size, with each region in its color, outlined, and boxes.
    ``labels`` (H, W) is the label map at the image's own size; ``boxes`` are (region, box in pixel
    edges of that size, score, which is written there)."""
    height, width = photo.shape[:2]
    values = labels if labels.dtype == np.uint8 else labels.astype(np.int32)
    nearest = Image.Resampling.NEAREST
    small = np.asarray(Image.fromarray(values).resize((width, height), nearest))
    n_regions = max([int(small.max()), *(region + 1 for region, _, _ in boxes)])
    colors = factor_colors(n_regions)
    palette = np.vstack([np.zeros((1, 3), np.uint8), colors])
    painted = photo.copy()
    on = small > 0
    opacity = np.float32(_REGION_OPACITY)
    painted[on] = photo[on] * (1 - opacity) + palette[small[on]] * opacity + np.float32(0.5)
    painted[outlines(small)] = 255
    picture = Image.fromarray(painted)
    draw = ImageDraw.Draw(picture)
    scale_y, scale_x = height / labels.shape[0], width / labels.shape[1]
    font = ImageFont.load_default(size=_FONT_SIZE)
    for region, (x_min, y_min, x_max, y_max), score in boxes:
        left, top = round(x_min * scale_x), round(y_min * scale_y)
        right, bottom = round(x_max * scale_x) - 1, round(y_max * scale_y) - 1
        color = tuple(colors[region].tolist())
        edges = (left, top, max(left, right), max(top, bottom))
        draw.rectangle(edges, outline=color, width=_LINE_WIDTH)
        if score is not None:
            place, text = (left + _LINE_WIDTH, top + _LINE_WIDTH), f"{score:.2f}"
            draw.rectangle(draw.textbbox(place, text, font), fill=color)
            draw.text(place, text, fill="white", font=font)
    return np.asarray(picture)
