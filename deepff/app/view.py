"""What one page shows of a result, apart from the labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepff.app.labels import ACCEPTED, SKIPPED, Labels
from deepff.app.pictures import Pictures
from deepff.images.image_files import natural_key

LOOKS = ("masks", "heat maps", "photos")
GRIDS = (5, 10, 20, 40)
ALL, EMPTY, CHANGED = "all", "empty", "changed"
STATUS_FILTERS = {"to do": "", "accepted": ACCEPTED, "skipped": SKIPPED}
# Before the name of a class, in a filter of it.
OF_CLASS = "class "
COVERING, DOUBT, NAME = "varied first", "doubtful first", "as named"
ORDERS = (COVERING, DOUBT, NAME)
# Of the mending view: what each does, its key and what it is called.
TOOLS = (
    ("delete", "d", "delete a piece"),
    ("alone", "o", "only this piece"),
    ("fill", "f", "fill a hole"),
    ("more", "m", "more like this"),
    ("less", "l", "less like this"),
    ("paint", "b", "brush"),
    ("erase", "e", "erase"),
    ("cut", "c", "cut"),
)
# What a reload keeps.
_KEPT = ("position", "look", "filter", "order", "search", "in_view")


@dataclass
class View:
    """What one page shows.

    Attributes
    ----------
    revision : int
        Of the labels that are shown.
    position : int
        The image under the keyboard, in `listing`.
    moves : int
        Grows when the server changes the position, so that the browser follows.
    serial : int
        Grows with each answer.
    look : str
        One of `LOOKS`.
    tab : "images", "factors" or "export"
    filter : str
        `ALL`, one of `STATUS_FILTERS`, `EMPTY`, `CHANGED`, or `OF_CLASS` and a name.
    order : str
        One of `ORDERS`.
    search : str
        Part of the file's name.
    in_view : int
        Images a page.
    listing : list of int
        The places in the set of the images that pass, in order. It stays as it is while images are
        decided about, so that none moves under the pointer.
    mending : str
        The image that is mended; "" where none is.
    """

    revision: int = -1
    position: int = 0
    moves: int = 0
    serial: int = 0
    look: str = LOOKS[0]
    tab: str = "images"
    filter: str = ALL
    order: str = COVERING
    search: str = ""
    in_view: int = GRIDS[0]
    listing: list[int] = field(default_factory=list)
    mending: str = ""

    def go(self, position: int) -> None:
        """Show another image, as the server's own doing."""
        self.position = min(max(position, 0), max(0, len(self.listing) - 1))
        self.moves += 1

    @property
    def page(self) -> Sequence[int]:
        """The places in the set of the images that are shown."""
        return self.on_page(self.position // self.in_view)

    def on_page(self, number: int) -> Sequence[int]:
        """Those of another page."""
        return self.listing[number * self.in_view : (number + 1) * self.in_view]

    def kept(self) -> dict[str, Any]:
        """What the browser keeps for a reload."""
        return {name: getattr(self, name) for name in _KEPT}

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
    """The places in the set of the images that a view is of, in its order."""
    names = pictures.names
    if view.order == COVERING:
        order = pictures.order(labels.settings.k)
    elif view.order == DOUBT:
        doubt = pictures.overview(labels).doubt
        order = sorted(range(len(names)), key=lambda index: -doubt[index])
    else:
        # Images that were added later come last in the set.
        order = sorted(range(len(names)), key=lambda index: natural_key(names[index]))
    wanted = view.search.casefold()
    found = {index for index in order if wanted in names[index].casefold()}
    if view.filter in STATUS_FILTERS:
        status = STATUS_FILTERS[view.filter]
        found = {index for index in found if labels.image(names[index]).status == status}
    elif view.filter == CHANGED:
        found = {index for index in found if labels.differs(names[index])}
    elif view.filter == EMPTY or view.filter.startswith(OF_CLASS):
        name = view.filter.removeprefix(OF_CLASS)
        present = pictures.overview(labels).present
        parts = labels.parts
        classes = {index: _classes(labels, names[index], parts, present[index]) for index in found}
        found = {
            index
            for index, held in classes.items()
            if (not held if view.filter == EMPTY else name in held)
        }
    return [index for index in order if index in found]


def _classes(labels: Labels, name: str, parts: Mapping[int, str], present: np.ndarray) -> set[str]:
    """The classes of an image: of what it keeps, else those of factors that are likely there."""
    label = labels.image(name)
    if label.mask is not None:
        return {*label.mask.names}
    dropped = labels.dropped(name)
    return {part for factor, part in parts.items() if present[factor] and factor not in dropped}
