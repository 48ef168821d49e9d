"""What is taught by masks that somebody has looked at, and to which images."""

from dataclasses import dataclass

import numpy as np

from deepff.app.labels import OBJECT, SKIPPED, Labels, Settings
from deepff.app.masks import kept_mask
from deepff.results.run import Run


@dataclass
class Teaching:
    """A lesson that is being worked out, or waits to be taken.

    Attributes
    ----------
    total, done : int
        Images that go through the network, and that have.
    lesson : str
        The file of what came of it; "" as long as there is none.
    error : str or None
        Why nothing came of it.
    n_teachers : int
        By how many masks.
    """

    total: int
    n_teachers: int
    done: int = 0
    lesson: str = ""
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it waits for what is to be done with it."""
        return bool(self.lesson or self.error)


def can_be_taught(run: Run, settings: Settings) -> bool:
    """Whether masks are of an object that a classifier finds."""
    whole = run.object
    return (
        settings.masks == OBJECT
        and whole is not None
        and whole.factorization(1).classifier is not None
    )


def teachers(labels: Labels, names: list[str]) -> list[str]:
    """The images whose masks somebody has looked at: accepted or mended, and not skipped."""
    return [
        name
        for name in names
        if labels.image(name).mask is not None and labels.image(name).status != SKIPPED
    ]


def pupils(labels: Labels, names: list[str]) -> list[int]:
    """The places of the images that a lesson may change: those without a mask of their own."""
    return [index for index, name in enumerate(names) if labels.image(name).mask is None]


def teacher_masks(labels: Labels, names: list[str]) -> dict[str, np.ndarray]:
    """Where the object is in the images that teach, (H, W) bool each."""
    masks = {}
    for name in teachers(labels, names):
        kept = kept_mask(labels, name)
        if kept is not None:
            masks[name] = kept.values > 0
    return masks
