"""What one page shows of a result, and the parts of it that are not Gradio's, as HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from deepff.app.edits import open_suggestions, steps
from deepff.app.kept_masks import is_lost
from deepff.app.labels import ACCEPTED, SKIPPED, Factor, Labels
from deepff.app.lessons import Teaching, classes_to_teach, pupils, teachers
from deepff.app.masks import Masks, is_gone
from deepff.app.pictures import MEND_SIDE, Pictures, data_uris, mask_uri, merged, picture_uri
from deepff.errors import InputError
from deepff.images.image_files import natural_key
from deepff.images.painting import factor_colors, hex_colors
from deepff.options import Threshold
from deepff.report.report import page_templates

LOOKS = ("masks", "heat maps", "photos")
GRIDS = (5, 10, 20, 40)
ALL, NOTHING, CHANGED, GONE = "all", "nothing here", "changed", "file gone"
STATUS_FILTERS = {"to do": "", "accepted": ACCEPTED, "skipped": SKIPPED}
# A filter that shows a class is this and the class's name.
OF_CLASS = "class "
COVERING, DOUBT, NAME = "varied first", "doubtful first", "as named"
SCORE = "least certain first"
ORDERS = (COVERING, DOUBT, SCORE, NAME)
# What a reload keeps.
_KEPT = ("look", "filter", "order", "search", "in_view")
# IoU from which an image counts as unchanged by a lesson, and how many that change are shown.
_UNCHANGED, _N_CHANGES = 0.98, 6
_ENVIRONMENT = page_templates("deepff.app")


@dataclass
class View:
    """What one page shows."""

    revision: int = -1  # of the labels that are shown
    position: int = 0  # in `listing`, of the image under the keyboard
    moves: int = 0  # grows when the server changes the position, so that the browser follows
    serial: int = 0  # grows with each answer
    look: str = LOOKS[0]
    tab: str = "images"  # or "factors", "export"
    filter: str = ALL  # or one of STATUS_FILTERS, NOTHING, CHANGED, GONE, OF_CLASS and a name
    order: str = COVERING
    search: str = ""  # part of the file's name
    in_view: int = GRIDS[0]  # images per page
    # The indices of the images that pass the filter, in order. They stay while images are decided
    # about, so that none moves under the pointer.
    listing: list[int] = field(default_factory=list)
    mending: str = ""  # the image that is being mended

    def go(self, position: int) -> None:
        """Show another image without being asked to by the browser."""
        self.position = min(max(position, 0), max(0, len(self.listing) - 1))
        self.moves += 1

    @property
    def image(self) -> int | None:
        """The index of the image under the keyboard."""
        return self.listing[self.position] if self.listing else None

    @property
    def page(self) -> int:
        """The number of the page of images that is shown, from 0."""
        return self.position // self.in_view

    def on_page(self, number: int) -> Sequence[int]:
        """The indices of the images on a page."""
        return self.listing[number * self.in_view : (number + 1) * self.in_view]

    def kept(self) -> dict[str, Any]:
        """What the browser keeps for a reload."""
        return {name: getattr(self, name) for name in ("image", *_KEPT)}

    def restore(self, kept: Any) -> None:
        """Take what a browser kept, as far as it makes sense."""
        if not isinstance(kept, dict):
            return
        for name in _KEPT:
            value = kept.get(name)
            if type(value) is type(getattr(self, name)):
                setattr(self, name, value)
        self.look = self.look if self.look in LOOKS else LOOKS[0]
        self.order = self.order if self.order in ORDERS else COVERING
        self.in_view = self.in_view if self.in_view in GRIDS else GRIDS[0]


def listed(pictures: Pictures, labels: Labels, view: View) -> list[int]:
    """The indices of the images that pass the view's filter and search, in its order."""
    names = pictures.names
    scores = pictures.scores(labels.settings)
    if view.order == SCORE and scores is not None:
        sureness = np.abs(scores.best - 0.5)
        order = sorted(range(len(names)), key=lambda index: sureness[index])
    elif view.order == COVERING:
        order = pictures.order(labels.settings.k)
    elif view.order == DOUBT:
        doubt = pictures.overview(labels).doubt
        order = sorted(range(len(names)), key=lambda index: -doubt[index])
    else:
        # Images that were added later come last in the set.
        order = sorted(range(len(names)), key=lambda index: natural_key(names[index]))
    wanted = view.search.casefold()
    order = [index for index in order if wanted in names[index].casefold()]
    if view.filter in STATUS_FILTERS:
        status = STATUS_FILTERS[view.filter]
        return [index for index in order if labels.image(names[index]).status == status]
    if view.filter == CHANGED:
        return [index for index in order if labels.differs(names[index])]
    if view.filter == GONE:
        return [i for i in order if is_gone(pictures.result, i) or is_lost(labels, names[i])]
    if view.filter != NOTHING and not view.filter.startswith(OF_CLASS):
        return order
    present = pictures.overview(labels).present
    classes = {index: _likely_classes(labels, names[index], present[index]) for index in order}
    if view.filter == NOTHING:
        return [index for index in order if not classes[index]]
    return [index for index in order if view.filter.removeprefix(OF_CLASS) in classes[index]]


def _likely_classes(labels: Labels, name: str, present: np.ndarray) -> set[str]:
    """The classes in the mask that an image keeps, else of factors that are likely there."""
    mask, dropped = labels.image(name).mask, labels.dropped(name)
    if mask is not None:
        return {*mask.names}
    dropped = () if labels.settings.taught else dropped
    return {part for j, part in labels.made.items() if present[j] and j not in dropped}


def render(template: str, **values: Any) -> str:
    """A filled-in template; values are escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def sentence(error: Exception) -> str:
    """What went wrong, as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def factor_rows(
    pictures: Pictures, labels: Labels, suggestions: Mapping[tuple[int, int], Factor]
) -> str:
    """A row per factor: color, name, keep or background."""
    first = merged(labels)
    colors = hex_colors(pictures.merged_colors(labels))
    shares = pictures.result.factorizations[labels.settings.k].energy_shares.tolist()
    return render(
        "factors.html",
        factors=[
            {
                **vars(labels.factor(j)),
                "number": j,
                "color": colors[j],
                "default_name": labels.default_names[j],
                "merged_with": first[j] if first.get(j, j) != j else None,
                "share": round(100 * share),
            }
            for j, share in enumerate(shares)
        ],
        n_suggested=len(open_suggestions(labels, suggestions)),
        suggestions=labels.name_suggestions(),
        classes=_class_colors(pictures, labels),
        parts=labels.parts,
    )


def cards(pictures: Pictures, labels: Labels, view: View) -> str:
    """The images in view, with what was decided about them."""
    names = pictures.names
    indices = view.on_page(view.page)
    draw: dict[str, Callable[[Labels, int], np.ndarray]] = {
        "masks": pictures.masks,
        "heat maps": pictures.heat_maps,
        "photos": lambda _, index: pictures[index],
    }
    uris = data_uris(partial(draw[view.look], labels), indices)
    colors = _class_colors(pictures, labels)
    has_scores = pictures.scores(labels.settings) is not None
    return render(
        "cards.html",
        cards=[
            {"picture": uri, **_card(pictures, labels, index, colors)}
            for index, uri in zip(indices, uris, strict=True)
        ],
        looks=LOOKS,
        grids=GRIDS,
        orders=[order for order in ORDERS if order != SCORE or has_scores],
        filters=[
            *(ALL, *STATUS_FILTERS, NOTHING, CHANGED, GONE),
            *(OF_CLASS + name for name in labels.class_names_in(names)),
        ],
        view=view,
        n_pages=max(1, -(-len(view.listing) // view.in_view)),
        total=len(view.listing),
        of=len(names),
        changed=sum(map(labels.differs, names)),
    )


def _card(
    pictures: Pictures, labels: Labels, index: int, colors: Mapping[str, str]
) -> dict[str, Any]:
    """What was decided about an image, and whether the settings make the same now."""
    name = pictures.names[index]
    photo, unreadable = pictures.photo(index)
    label, settings = labels.image(name), labels.settings_of(name)
    mask, scores = label.mask, pictures.scores(settings)
    in_hundredths = settings.level_kind == Threshold.PERCENTILE
    return {
        "index": index,
        "name": name,
        "size": photo.shape[:2],
        "unreadable": "the file is missing" if is_gone(pictures.result, index) else unreadable,
        "regions": _classes(pictures, labels, index, colors),
        "status": label.status,
        "score": None if scores is None else float(scores.best[index]),
        "shows_nothing": label.shows_nothing,
        "mended": mask is not None and mask.mended and not label.shows_nothing,
        "lost": is_lost(labels, name),
        "agreement": (
            round(100 * pictures.agreement(labels, index)) if labels.differs(name) else None
        ),
        "level": settings.level,
        "own_level": label.level is not None and label.level.kind == settings.level_kind,
        "level_range": (1, 99, 1) if in_hundredths else (0.05, 0.95, 0.05),
    }


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
    classes, keys = [], labels.all_classes
    for name in pictures.classes_present(labels, index):
        factors = [factor for factor, part in labels.parts.items() if part == name]
        classes.append(
            {
                "name": name,
                "factors": factors,
                "color": colors[name],
                "key": keys.index(name) + 1,
                "dropped": bool(factors) and {*factors} <= dropped,
            }
        )
    return classes


def lesson(pictures: Pictures, labels: Labels, teaching: Teaching | None) -> str:
    """What masks could teach, are teaching, or would change; "" where there is nothing to teach."""
    names = pictures.names
    n_teachers, others = len(teachers(labels, names)), pupils(labels, names)
    if teaching is None and not (n_teachers and others):
        return ""
    changed: list[int] = []
    changes: list[dict[str, Any]] = []
    if teaching is not None and teaching.lesson:
        ious = teaching.agreements
        changed = [i for i in sorted(others, key=lambda i: ious[i]) if ious[i] < _UNCHANGED]
        shown = changed[:_N_CHANGES]
        before, after = (
            data_uris(partial(pictures.masks, of), shown)
            for of in (labels, teaching.taught(labels))
        )
        changes = [
            {"name": names[i], "before": old, "after": new, "agreement": round(100 * ious[i])}
            for i, old, new in zip(shown, before, after, strict=True)
        ]
    classes = teaching.classes if teaching else classes_to_teach(pictures.result, labels)
    return render(
        "lesson.html",
        teaching=teaching,
        again=bool(labels.settings.lesson),
        n_teachers=n_teachers,
        classes=classes,
        lost=sorted({*labels.made.values()} - {*classes}) if classes else [],
        n_pupils=len(others),
        n_changed=len(changed),
        changes=changes,
    )


def mend(pictures: Pictures, labels: Labels, view: View) -> str:
    """The view in which one image is mended: its photograph and the tools; "" where none is."""
    if not view.mending:
        return ""
    index = pictures.names.index(view.mending)
    photo, _ = pictures.large(index)
    main = pictures.mask(labels, index).main_class
    return render(
        "mend.html",
        index=index,
        name=view.mending,
        picture=picture_uri(photo),
        size=photo.shape[:2],
        classes=[
            {"name": name, "color": color, "selected": name == main}
            for name, color in _class_colors(pictures, labels).items()
        ],
        accepted=labels.image(view.mending).status == ACCEPTED,
        steps=steps(labels),
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
    factors = []
    for j in range(k):
        images = pictures.strongest(k, j)
        uris = data_uris(partial(pictures.factor, k, j), images)
        factors.append(
            {
                "number": j,
                "color": colors[j],
                "name": labels.factor(j).name or labels.default_names[j],
                "keep": labels.factor(j).keep,
                "pictures": list(zip(images, uris, strict=True)),
            }
        )
    return render("gallery.html", factors=factors, names=pictures.names)
