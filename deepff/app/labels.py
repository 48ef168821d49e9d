"""What a person decided about a result: names of factors, and images accepted, skipped or mended.

`Labels` never change: :mod:`deepff.app.edits` makes new ones.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from deepff.options import THRESHOLD_VALUES, Refinement, RegionOptions, Threshold, threshold_value
from deepff.regions.part_names import factor_names

ACCEPTED, SKIPPED = "accepted", "skipped"
STATUSES = ("", ACCEPTED, SKIPPED)
# Masks are the object's, each piece of it called after a factor; or those of the factors.
OBJECT, FACTORS = "object", "factors"


@dataclass(frozen=True)
class Settings:
    """Which factorization, and how its heat maps become regions.

    Attributes
    ----------
    k : int
    threshold, value, refine
        See :class:`deepff.options.RegionOptions`; for masks of the factors.
    masks : "object" or "factors"
    cut : float
        How likely a pixel of the object is at the least, in (0, 1); for masks of the object.
    lesson : str
        The file of what mended masks taught (:mod:`deepff.app.lessons`), "" where they taught
        nothing; for masks of the object.
    """

    k: int
    threshold: str = Threshold.PERCENTILE
    value: float = THRESHOLD_VALUES[Threshold.PERCENTILE][0]
    refine: str = Refinement.NONE
    masks: str = FACTORS
    cut: float = 0.5
    lesson: str = ""

    @property
    def region_options(self) -> RegionOptions:
        """The settings as :func:`deepff.regions.regions.find_regions` takes them, without names."""
        value = self.value if self.threshold in THRESHOLD_VALUES else None
        return RegionOptions(self.threshold, value, self.refine)

    @property
    def level_kind(self) -> str:
        """What the number that one image may have of its own is: a cut, or of which threshold.

        "" where there is none.
        """
        if self.masks == OBJECT:
            return OBJECT
        takes_one = self.refine != Refinement.CLASSIFIER and self.threshold in THRESHOLD_VALUES
        return self.threshold if takes_one else ""

    @property
    def level(self) -> float | None:
        """That number as it is for all images."""
        if not self.level_kind:
            return None
        return self.cut if self.level_kind == OBJECT else self.value

    def at_level(self, level: "Level | None") -> "Settings":
        """These settings with an image's own level, if it is one of their kind."""
        if level is None or level.kind != self.level_kind:
            return self
        of_object = level.kind == OBJECT
        return replace(self, cut=level.value) if of_object else replace(self, value=level.value)

    def with_threshold(self, threshold: str) -> "Settings":
        """These settings with another threshold, at its default value where it takes one.

        The classifier has none, so the dense CRF takes its place.
        """
        value = threshold_value(threshold)
        by_classifier = self.refine == Refinement.CLASSIFIER
        return replace(
            self,
            threshold=threshold,
            value=self.value if value is None else value,
            refine=Refinement.DENSE_CRF if by_classifier else self.refine,
        )


@dataclass(frozen=True)
class Level:
    """What one image has in place of a number of the settings.

    Attributes
    ----------
    kind : str
        See :attr:`Settings.level_kind`.
    value : float
    """

    kind: str
    value: float


@dataclass(frozen=True)
class Factor:
    """What a person says of one factor.

    Attributes
    ----------
    name : str
        "" where none was given.
    keep : bool
        False: it is background.
    suggested : bool
        Whether the network said so, and nobody has agreed yet.
    """

    name: str = ""
    keep: bool = True
    suggested: bool = False


@dataclass(frozen=True)
class OwnMask:
    """A mask that an image keeps whatever the settings are by now.

    Attributes
    ----------
    file : str
        In the folder of masks, see :mod:`deepff.app.mask_files`.
    names : tuple of str
        Of its values 1, 2, …
    k : int
        The factorization whose factors the names are of.
    recipe : str
        Of the settings that it was made with, see :meth:`Labels.recipe`.
    mended : bool
        Whether a person changed pixels of it.
    """

    file: str
    names: tuple[str, ...]
    k: int
    recipe: str
    mended: bool = False


@dataclass(frozen=True)
class ImageLabel:
    """What a person says of one image.

    Attributes
    ----------
    status : "", "accepted" or "skipped"
    dropped : mapping of int to tuple of int
        For each k the factors that count as background in this image, ascending.
    level : Level, optional
        Its own, for masks that are made with one of its kind.
    mask : OwnMask, optional
        What was accepted or mended, in place of what the settings make.
    """

    status: str = ""
    dropped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    level: Level | None = None
    mask: OwnMask | None = None


@dataclass(frozen=True)
class Step:
    """What an edit replaced.

    Attributes
    ----------
    before : mapping of key to Settings, Factor or ImageLabel
        The key of the settings is None, of a factor (k, number), of an image its name.
    """

    before: Mapping[Any, "Settings | Factor | ImageLabel"]


@dataclass(frozen=True)
class Labels:
    """All that a person decided about a result.

    Attributes
    ----------
    run : str
        A digest of the result that this is about.
    settings : Settings
    factors : mapping of (k, factor) to Factor
        Those that something was said of.
    images : mapping of str to ImageLabel
        By name, those that something was said of.
    history : tuple of Step
        What `undo` takes back, the latest last.
    revision : int
        Grows by one with each edit and each undo.
    folder : Path, optional
        Of the result, where the images' own masks are.
    """

    run: str
    settings: Settings
    factors: Mapping[tuple[int, int], Factor] = field(default_factory=dict)
    images: Mapping[str, ImageLabel] = field(default_factory=dict)
    history: tuple[Step, ...] = ()
    revision: int = 0
    folder: Path | None = field(default=None, compare=False)

    def factor(self, number: int) -> Factor:
        """What is said of a factor of the chosen k."""
        return self.factors.get((self.settings.k, number), Factor())

    def region(self, number: int) -> list[int]:
        """The factors of the chosen k that are one class with this one, itself included."""
        name = self.parts.get(number)
        return [factor for factor, other in self.parts.items() if other == name] or [number]

    def image(self, name: str) -> ImageLabel:
        """What is said of an image."""
        return self.images.get(name, ImageLabel())

    def dropped(self, image: str) -> tuple[int, ...]:
        """The factors of the chosen k that are dropped in an image."""
        return self.image(image).dropped.get(self.settings.k, ())

    @property
    def own_names(self) -> list[str]:
        """What the factors of the chosen k are called without a name, such as "factor 3"."""
        return factor_names(self.settings.k)

    @property
    def parts(self) -> dict[int, str]:
        """The region of each kept factor of the chosen k: its name, given or own."""
        named = [(self.factor(j), own) for j, own in enumerate(self.own_names)]
        return {j: factor.name or own for j, (factor, own) in enumerate(named) if factor.keep}

    @property
    def region_options(self) -> RegionOptions:
        """The settings and names as :func:`deepff.regions.regions.find_regions` takes them."""
        return replace(self.settings.region_options, parts=self.parts)

    def settings_of(self, image: str) -> Settings:
        """The settings, with the image's own level."""
        return self.settings.at_level(self.image(image).level)

    def recipe(self, image: str) -> str:
        """A digest of what makes the image's mask; names apart, which its own mask follows."""
        return _recipe(self.settings_of(image), tuple(sorted(self.parts)), self.dropped(image))

    def differs(self, image: str) -> bool:
        """Whether the settings are others than those that the image's own mask was made with."""
        mask = self.image(image).mask
        return mask is not None and mask.recipe != self.recipe(image)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes that the settings make, by their first factors."""
        return list(dict.fromkeys(self.parts.values()))

    def class_names_in(self, images: Collection[str]) -> list[str]:
        """The names of the classes that images may hold, those of the settings first.

        Where all of them have masks of their own, only those that are in one.
        """
        masks = [self.image(name).mask for name in images]
        own = {name for mask in masks if mask is not None for name in mask.names}
        some_follow = any(mask is None for mask in masks)
        first = [name for name in self.class_names if some_follow or name in own]
        return [*first, *sorted(own.difference(first), key=str.casefold)]

    def name_suggestions(self) -> list[str]:
        """The names given so far, for any k and those replaced since too, in alphabetical order."""
        before = [entry for step in self.history for entry in step.before.values()]
        factors = [entry for entry in before if isinstance(entry, Factor)]
        names = {factor.name for factor in [*self.factors.values(), *factors]}
        return sorted(names - {""}, key=str.casefold)

    def count(self, status: str, names: Sequence[str]) -> int:
        """How many of the images have a status."""
        return sum(self.image(name).status == status for name in names)


@lru_cache(256)
def _recipe(settings: Settings, kept: tuple[int, ...], dropped: tuple[int, ...]) -> str:
    used: list[Any] = [settings.masks, settings.k, kept, dropped, settings.level]
    if settings.masks == FACTORS:
        used += [settings.threshold, settings.refine]
    elif settings.lesson:
        used.append(settings.lesson)
    return sha256(json.dumps(used).encode()).hexdigest()[:16]
