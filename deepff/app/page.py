"""The parts of the page that are not Gradio's, as HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from deepff.app.kept_masks import has_file
from deepff.app.labels import ACCEPTED, SKIPPED, Factor, Labels
from deepff.app.lessons import Teaching, agreements, can_be_taught, pupils, teachers
from deepff.app.masks import Masks
from deepff.app.pictures import MEND_SIDE, Pictures, data_uris, mask_uri, merged
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
from deepff.images.painting import factor_colors, hex_colors
from deepff.options import Threshold

# IoU from which an image counts as unchanged by a lesson, and how many that change are shown.
_UNCHANGED, _N_CHANGES = 0.98, 6
_ENVIRONMENT = Environment(
    loader=PackageLoader("deepff.app"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """A filled-in template; values are escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def sentence(error: Exception) -> str:
    """What went wrong, as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def header(folder: Path, labels: Labels, names: Sequence[str], view: View, notice: str) -> str:
    """The result's name, how many images are decided about, and the button that undoes."""
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
    """A row per factor: color, name, keep or background."""
    first = merged(labels)
    colors = hex_colors(pictures.merged_colors(labels))
    k = labels.settings.k
    factors = {**suggested, **labels.factors}
    return render(
        "factors.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name,
                "default_name": labels.default_names[j],
                "keep": labels.factor(j).keep,
                "suggested": labels.factor(j).suggested,
                "merged_with": first[j] if first.get(j, j) != j else None,
                "share": round(100 * share),
            }
            for j, share in enumerate(shares)
        ],
        n_suggested=sum(factors[k, j].suggested for j in range(k) if (k, j) in factors),
        suggestions=labels.name_suggestions(),
    )


def cards(pictures: Pictures, labels: Labels, view: View) -> str:
    """The images in view, with what was decided about them."""
    names = pictures.names
    page, indices = view.position // view.in_view, view.page
    draw = {"masks": pictures.masks, "heat maps": pictures.heat_maps, "photos": pictures.plain}
    uris = data_uris(partial(draw[view.look], labels), indices)
    colors = _class_colors(pictures, labels)
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
                "regions": _classes(pictures, labels, index, colors),
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
    """What was decided about an image, and whether the settings make the same now."""
    name = pictures.names[index]
    label, settings = labels.image(name), labels.settings_of(name)
    mask, folder = label.mask, labels.folder
    differs = labels.differs(name)
    in_hundredths = settings.level_kind == Threshold.PERCENTILE
    return {
        "status": label.status,
        "mended": mask is not None and mask.mended,
        "lost": mask is not None and folder is not None and not has_file(mask.file, folder),
        "agreement": round(100 * pictures.agreement(labels, index)) if differs else 100,
        "level": settings.level,
        "own_level": label.level is not None and label.level.kind == settings.level_kind,
        "level_range": (1, 99, 1) if in_hundredths else (0.05, 0.95, 0.05),
    }


def _filters(labels: Labels, names: Sequence[str]) -> list[str]:
    """The filters that the page offers."""
    classes = [OF_CLASS + name for name in labels.class_names_in(names)]
    return [ALL, *STATUS_FILTERS, EMPTY, CHANGED, *classes]


def _class_colors(pictures: Pictures, labels: Labels) -> dict[str, str]:
    """The color of each class, as "#rrggbb"."""
    numbers = pictures.color_numbers(labels)
    colors = hex_colors(factor_colors(max(numbers.values(), default=0) + 1))
    return {name: colors[number] for name, number in numbers.items()}


def _classes(
    pictures: Pictures, labels: Labels, index: int, colors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The classes of an image, with the factors that have their names."""
    image = pictures.names[index]
    dropped = {*labels.dropped(image)} if labels.image(image).mask is None else set()
    classes = []
    for name in pictures.classes_present(labels, index):
        factors = [factor for factor, part in labels.parts.items() if part == name]
        classes.append(
            {
                "name": name,
                "factors": factors,
                "color": colors[name],
                "dropped": bool(factors) and {*factors} <= dropped,
            }
        )
    return classes


def lesson(pictures: Pictures, labels: Labels, teaching: Teaching | None) -> str:
    """What masks could teach, are teaching, or would change; "" where there is nothing to teach."""
    result, names = pictures.result, pictures.names
    if not can_be_taught(result, labels.settings):
        return ""
    n_teachers, others = len(teachers(labels, names)), pupils(labels, names)
    if teaching is None and not (n_teachers and others):
        return ""
    changed: list[int] = []
    ious = np.ones(len(names))
    if teaching is not None and teaching.lesson:
        assert labels.folder is not None
        ious = agreements(result, labels.settings, teaching.lesson, labels.folder)
        others.sort(key=lambda index: ious[index])
        changed = [index for index in others if ious[index] < _UNCHANGED]
    return render(
        "lesson.html",
        teaching=teaching,
        n_teachers=n_teachers,
        n_pupils=len(others),
        n_changed=len(changed),
        changed=_changes(pictures, labels, teaching, changed[:_N_CHANGES], ious),
    )


def _changes(
    pictures: Pictures,
    labels: Labels,
    teaching: Teaching | None,
    indices: Sequence[int],
    ious: np.ndarray,
) -> list[dict[str, Any]]:
    """Images before and after the lesson that waits to be used."""
    if teaching is None:
        return []
    taught = replace(labels, settings=replace(labels.settings, lesson=teaching.lesson))
    before, after = (data_uris(partial(pictures.masks, of), indices) for of in (labels, taught))
    return [
        {
            "name": pictures.names[index],
            "before": uri,
            "after": taught_uri,
            "agreement": round(100 * ious[index]),
        }
        for index, uri, taught_uri in zip(indices, before, after, strict=True)
    ]


def mend(pictures: Pictures, labels: Labels, view: View) -> str:
    """The view in which one image is mended: its photograph and the tools; "" where none is."""
    if not view.mending:
        return ""
    index = pictures.names.index(view.mending)
    [uri] = data_uris(pictures.large, [index])
    main = pictures.mask(labels, index).main_class
    return render(
        "mend.html",
        index=index,
        name=view.mending,
        picture=uri,
        size=pictures.large(index).shape[:2],
        classes=[
            {"name": name, "color": color, "selected": name == main}
            for name, color in _class_colors(pictures, labels).items()
        ],
        accepted=labels.image(view.mending).status == ACCEPTED,
        tools=TOOLS,
    )


def overlay(masks: Masks, pictures: Pictures, labels: Labels, view: View) -> str:
    """The mask of the image that is being mended, to lay over its photograph."""
    if not view.mending:
        return ""
    try:
        mask = masks.current(labels, view.mending)
    except InputError as error:
        return render("overlay.html", picture="", error=sentence(error))
    numbers = pictures.color_numbers(labels)
    values = mask.renumbered([numbers[name] + 1 for name in mask.names])
    return render("overlay.html", picture=mask_uri(values, MEND_SIDE), error=None)


def gallery(pictures: Pictures, labels: Labels) -> str:
    """Each factor alone, on the images where it is strongest."""
    k = labels.settings.k
    colors = hex_colors(pictures.colors(k))
    return render(
        "gallery.html",
        factors=[
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name or labels.default_names[j],
                "keep": labels.factor(j).keep,
                "pictures": _alone(pictures, k, j),
            }
            for j in range(k)
        ],
    )


def _alone(pictures: Pictures, k: int, factor: int) -> list[dict[str, Any]]:
    strongest = pictures.strongest(k, factor)
    uris = data_uris(partial(pictures.factor, k, factor), strongest)
    return [
        {"uri": uri, "name": pictures.names[index], "image": index}
        for index, uri in zip(strongest, uris, strict=True)
    ]
