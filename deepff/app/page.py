"""The parts of the page that are not Gradio's own, as HTML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from deepff.app.labels import ACCEPTED, SKIPPED, Factor, Labels
from deepff.app.mask_files import is_there
from deepff.app.masks import Masks, main_class
from deepff.app.pictures import (
    MEND_SIDE,
    Pictures,
    data_uris,
    mask_uri,
    merged,
)
from deepff.app.view import (
    ALL,
    CHANGED,
    EMPTY,
    GRIDS,
    LOOKS,
    OF_CLASS,
    ORDERS,
    STATUS_FILTERS,
    TOOLS,
    View,
)
from deepff.errors import InputError
from deepff.images.painting import factor_colors
from deepff.options import Threshold

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


def sentence(error: Exception) -> str:
    """What went wrong, as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def header(folder: Path, labels: Labels, names: Sequence[str], view: View, notice: str) -> str:
    """What is open, how far it is, and whether the last edit can be taken back."""
    return render(
        "header.html",
        folder=folder.resolve().name,
        total=len(names),
        accepted=labels.count(ACCEPTED, names),
        skipped=labels.count(SKIPPED, names),
        can_undo=bool(labels.history),
        revision=labels.revision,
        serial=view.serial,
        notice=notice,
    )


def factor_rows(
    pictures: Pictures,
    labels: Labels,
    shares: Sequence[float],
    suggested: Mapping[tuple[int, int], Factor],
) -> str:
    """A row for each factor: colour, name, keep or background."""
    first = merged(labels)
    colors = _hexadecimal(pictures.merged_colors(labels))
    k = labels.settings.k
    held = {**suggested, **labels.factors}
    return render(
        "factors.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name,
                "own_name": labels.own_names[j],
                "keep": labels.factor(j).keep,
                "suggested": labels.factor(j).suggested,
                "merged_with": first[j] if first.get(j, j) != j else None,
                "share": round(100 * share),
            }
            for j, share in enumerate(shares)
        ],
        n_suggested=sum(held[k, j].suggested for j in range(k) if (k, j) in held),
        suggestions=labels.name_suggestions(),
    )


def cards(pictures: Pictures, labels: Labels, view: View) -> str:
    """The images in view, with what was decided about them."""
    names = pictures.names
    page, indices = view.position // view.in_view, view.page
    draw = {"masks": pictures.masks, "heat maps": pictures.heat_maps, "photos": pictures.plain}
    uris = data_uris(lambda index: draw[view.look](labels, index), indices)
    numbers = pictures.color_numbers(labels)
    colors = _hexadecimal(factor_colors(max(numbers.values(), default=0) + 1))
    changed = sum(
        label.status == ACCEPTED and labels.differs(name) for name, label in labels.images.items()
    )
    return render(
        "cards.html",
        cards=[
            {
                "position": page * view.in_view + offset,
                "index": index,
                "name": names[index],
                "picture": uri,
                "size": pictures.photo(index)[0].shape[:2],
                "unreadable": pictures.photo(index)[1],
                "regions": _classes(pictures, labels, index, numbers, colors),
                **_state(pictures, labels, index),
            }
            for offset, (index, uri) in enumerate(zip(indices, uris, strict=True))
        ],
        looks=LOOKS,
        grids=GRIDS,
        orders=ORDERS,
        filters=_filters(labels, names),
        view=view,
        page=page,
        n_pages=max(1, -(-len(view.listing) // view.in_view)),
        total=len(view.listing),
        of=len(names),
        changed=changed,
    )


def _state(pictures: Pictures, labels: Labels, index: int) -> dict[str, Any]:
    """What is decided about an image, and whether that is what the settings make now."""
    name = pictures.names[index]
    label, settings = labels.image(name), labels.settings_of(name)
    mask, folder = label.mask, labels.folder
    differs = labels.differs(name)
    in_hundredths = settings.level_kind == Threshold.PERCENTILE
    return {
        "status": label.status,
        "mended": mask is not None and mask.mended,
        "lost": mask is not None and folder is not None and not is_there(mask.file, folder),
        "agreement": round(100 * pictures.agreement(labels, index)) if differs else 100,
        "level": settings.level,
        "own_level": label.level is not None and label.level.kind == settings.level_kind,
        "level_range": (1, 99, 1) if in_hundredths else (0.05, 0.95, 0.05),
    }


def _filters(labels: Labels, names: Sequence[str]) -> list[str]:
    """What can be shown, of which some are counted at once."""
    classes = [OF_CLASS + name for name in labels.class_names_in(names)]
    return [ALL, *STATUS_FILTERS, EMPTY, CHANGED, *classes]


def _classes(
    pictures: Pictures,
    labels: Labels,
    index: int,
    numbers: Mapping[str, int],
    colors: Sequence[str],
) -> list[dict[str, Any]]:
    """The classes of an image, with the factors that are called so."""
    image = pictures.names[index]
    dropped = {*labels.dropped(image)} if labels.image(image).mask is None else set()
    found = []
    for name in pictures.classes_present(labels, index):
        factors = [factor for factor, part in labels.parts.items() if part == name]
        found.append(
            {
                "name": name,
                "factors": factors,
                "color": colors[numbers[name]],
                "dropped": bool(factors) and {*factors} <= dropped,
            }
        )
    return found


def mend(pictures: Pictures, labels: Labels, view: View) -> str:
    """The view in which one image is mended: its photograph, and the tools; "" where none is."""
    if not view.mending:
        return ""
    index = pictures.result.names.index(view.mending)
    [uri] = data_uris(pictures.large, [index])
    numbers = pictures.color_numbers(labels)
    colors = _hexadecimal(factor_colors(max(numbers.values(), default=0) + 1))
    label = labels.image(view.mending)
    main = main_class(pictures.mask(labels, index))
    return render(
        "mend.html",
        index=index,
        name=view.mending,
        picture=uri,
        size=pictures.large(index).shape[:2],
        classes=[
            {"name": name, "color": colors[number], "selected": name == main}
            for name, number in numbers.items()
        ],
        accepted=label.status == ACCEPTED,
        tools=TOOLS,
    )


def overlay(masks: Masks, pictures: Pictures, labels: Labels, view: View) -> str:
    """The mask of the image that is mended, to be laid over its photograph."""
    if not view.mending:
        return ""
    try:
        mask = masks.current(labels, view.mending)
    except InputError as error:
        return render("overlay.html", picture="", error=sentence(error))
    numbers = pictures.color_numbers(labels)
    values = mask.renumbered([numbers[name] + 1 for name in mask.names])
    return render("overlay.html", picture=mask_uri(values, MEND_SIDE), error=None)


def gallery(pictures: Pictures, labels: Labels, view: View) -> str:
    """Each factor alone, on the images where it is strongest."""
    k = labels.settings.k
    colors = _hexadecimal(pictures.colors(k))
    return render(
        "gallery.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name or labels.own_names[j],
                "keep": labels.factor(j).keep,
                "pictures": [
                    {"uri": uri, "name": pictures.result.names[index], "image": index}
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
