"""The parts of the page that are not Gradio's own, as HTML."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from deepff.app.labels import Labels
from deepff.app.pictures import IN_VIEW, Pictures, data_uris, merged, merged_colors
from deepff.app.view import LOOKS, View
from deepff.report.colors import factor_colors

_ENVIRONMENT = Environment(
    loader=PackageLoader("deepff.app"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Fill a template in; values are escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def header(folder: Path, labels: Labels, names: Sequence[str], notice: str) -> str:
    """What is open, how far it is, and whether the last edit can be taken back."""
    return render(
        "header.html",
        folder=folder.resolve().name,
        total=len(names),
        accepted=labels.count("accepted", names),
        skipped=labels.count("skipped", names),
        can_undo=bool(labels.history),
        revision=labels.revision,
        notice=notice,
    )


def factor_rows(labels: Labels, shares: Sequence[float]) -> str:
    """A row for each factor: colour, name, keep or background."""
    first = merged(labels)
    colors = _hexadecimal(merged_colors(labels))
    return render(
        "factors.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name,
                "own_name": labels.own_names[j],
                "keep": labels.factor(j).keep,
                "merged_with": first[j] if first.get(j, j) != j else None,
                "share": round(100 * share),
            }
            for j, share in enumerate(shares)
        ],
        suggestions=labels.name_suggestions(),
    )


def cards(pictures: Pictures, labels: Labels, view: View) -> str:
    """The images in view, with what was decided about them."""
    order = pictures.order(labels.settings.k)
    names = pictures.result.names
    page = view.position // IN_VIEW
    shown = order[page * IN_VIEW : (page + 1) * IN_VIEW]
    draw = {"masks": pictures.masks, "heat maps": pictures.heat_maps, "photos": pictures.plain}
    uris = data_uris(lambda index: draw[view.look](labels, index), shown)
    colors = _hexadecimal(merged_colors(labels))
    return render(
        "cards.html",
        cards=[
            {
                "position": page * IN_VIEW + offset,
                "index": index,
                "name": names[index],
                "picture": uri,
                "size": pictures.photo(index)[0].shape[:2],
                "unreadable": pictures.photo(index)[1],
                "status": labels.image(names[index]).status,
                "regions": _regions(
                    labels, names[index], pictures.factors_present(labels, index), colors
                ),
            }
            for offset, (index, uri) in enumerate(zip(shown, uris, strict=True))
        ],
        looks=LOOKS,
        view=view,
        page=page,
        n_pages=-(-len(order) // IN_VIEW),
        total=len(order),
        in_view=IN_VIEW,
    )


def _regions(
    labels: Labels, image: str, present: Sequence[int], colors: Sequence[str]
) -> list[dict[str, Any]]:
    """The regions of an image, each of one name, with the factors that make it there."""
    factors: dict[str, list[int]] = {}
    for factor in present:
        factors.setdefault(labels.parts[factor], []).append(factor)
    dropped = {*labels.dropped(image)}
    return [
        {
            "name": name,
            "factors": numbers,
            "color": colors[numbers[0]],
            "dropped": {*numbers} <= dropped,
        }
        for name, numbers in factors.items()
    ]


def gallery(pictures: Pictures, labels: Labels) -> str:
    """Each factor alone, on the images where it is strongest."""
    k = labels.settings.k
    places = {index: position for position, index in enumerate(pictures.order(k))}
    colors = _hexadecimal(factor_colors(k))
    return render(
        "gallery.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name or labels.own_names[j],
                "keep": labels.factor(j).keep,
                "pictures": [
                    {"uri": uri, "name": pictures.result.names[index], "position": places[index]}
                    for index, uri in _alone(pictures, k, j)
                ],
            }
            for j in range(k)
        ],
    )


def _alone(pictures: Pictures, k: int, factor: int) -> list[tuple[int, str]]:
    strongest = pictures.strongest(k, factor)
    uris = data_uris(lambda index: pictures.factor(k, factor, index), strongest)
    return list(zip(strongest, uris, strict=True))


def _hexadecimal(colors: Any) -> list[str]:
    return [f"#{bytes(color).hex()}" for color in colors]
