"""Which images a page goes through, and in what order."""

from collections.abc import Mapping

import numpy as np

from deepff.app.labels import Labels
from deepff.app.pictures import Pictures
from deepff.app.view import CHANGED, COVERING, DOUBT, EMPTY, OF_CLASS, STATUS_FILTERS, View
from deepff.images.files import natural_key


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
