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
# A filter that shows a class is this and the class's name.
OF_CLASS = "class "
COVERING, DOUBT, NAME = "varied first", "doubtful first", "as named"
ORDERS = (COVERING, DOUBT, NAME)
# For mending: each tool, its key and what it is called.
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
    """What one page shows."""

    revision: int = -1  # of the labels that are shown
    position: int = 0  # in `listing`, of the image under the keyboard
    moves: int = 0  # grows when the server changes the position, so that the browser follows
    serial: int = 0  # grows with each answer
    look: str = LOOKS[0]
    tab: str = "images"  # or "factors", "export"
    filter: str = ALL  # or one of STATUS_FILTERS, EMPTY, CHANGED, OF_CLASS and a name
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
    def page(self) -> Sequence[int]:
        """The indices of the images that are shown."""
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
    """The indices of the images that pass the view's filter and search, in its order."""
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
    order = [index for index in order if wanted in names[index].casefold()]
    if view.filter in STATUS_FILTERS:
        status = STATUS_FILTERS[view.filter]
        return [index for index in order if labels.image(names[index]).status == status]
    if view.filter == CHANGED:
        return [index for index in order if labels.differs(names[index])]
    if view.filter != EMPTY and not view.filter.startswith(OF_CLASS):
        return order
    present, parts = pictures.overview(labels).present, labels.parts
    classes = {index: _classes(labels, names[index], parts, present[index]) for index in order}
    if view.filter == EMPTY:
        return [index for index in order if not classes[index]]
    return [index for index in order if view.filter.removeprefix(OF_CLASS) in classes[index]]


def _classes(labels: Labels, name: str, parts: Mapping[int, str], present: np.ndarray) -> set[str]:
    """The classes in the mask that an image keeps, else of factors that are likely there."""
    label = labels.image(name)
    if label.mask is not None:
        return {*label.mask.names}
    dropped = labels.dropped(name)
    return {part for factor, part in parts.items() if present[factor] and factor not in dropped}
