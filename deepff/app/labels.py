"""What a person decides about a result: names of factors, and images accepted, skipped or mended.

`Labels` never change: an edit returns new ones. Each edit replaces one entry (the settings, a
factor or an image) and notes what was there before, which is all that `undo` needs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deepff.export.instances import ImageEdits
from deepff.options import THRESHOLD_VALUES, Refinement, RegionOptions, Threshold, threshold_value
from deepff.regions.part_names import factor_names

HISTORY_LENGTH = 200
STATUSES = ("", "accepted", "skipped")


@dataclass(frozen=True)
class Settings:
    """Which factorization, and how its heat maps become regions.

    Attributes
    ----------
    k : int
    threshold, value, refine
        See :class:`deepff.options.RegionOptions`.
    """

    k: int
    threshold: str = Threshold.PERCENTILE
    value: float = THRESHOLD_VALUES[Threshold.PERCENTILE][0]
    refine: str = Refinement.NONE

    @property
    def region_options(self) -> RegionOptions:
        """The settings as :func:`deepff.regions.find.find_regions` takes them, without names."""
        value = self.value if self.threshold in THRESHOLD_VALUES else None
        return RegionOptions(self.threshold, value, self.refine)

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
class Factor:
    """What a person says of one factor.

    Attributes
    ----------
    name : str
        "" where none was given.
    keep : bool
        False: it is background.
    """

    name: str = ""
    keep: bool = True


@dataclass(frozen=True)
class ImageLabel:
    """What a person says of one image.

    Attributes
    ----------
    status : "", "accepted" or "skipped"
        Skipped images are left out of exports.
    dropped : mapping of int to tuple of int
        For each k the factors that count as background in this image, ascending.
    """

    status: str = ""
    dropped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What an edit replaced.

    Attributes
    ----------
    key : None, (int, int) or str
        The settings; factor (k, number); or the image of that name.
    before : Settings, Factor or ImageLabel
    """

    key: Any
    before: Settings | Factor | ImageLabel


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
        What `undo` takes back, the latest last; up to `HISTORY_LENGTH`.
    revision : int
        Grows by one with each edit and each undo.
    """

    run: str
    settings: Settings
    factors: Mapping[tuple[int, int], Factor] = field(default_factory=dict)
    images: Mapping[str, ImageLabel] = field(default_factory=dict)
    history: tuple[Step, ...] = ()
    revision: int = 0

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
        """The settings and names as :func:`deepff.regions.find.find_regions` takes them."""
        return replace(self.settings.region_options, parts=self.parts)

    @property
    def image_edits(self) -> ImageEdits:
        """What was decided image by image, as exports take it."""
        skipped = frozenset(
            name for name, label in self.images.items() if label.status == "skipped"
        )
        return ImageEdits(skipped, {name: self.dropped(name) for name in self.images})

    def name_suggestions(self) -> list[str]:
        """The names given so far, for any k and those replaced since too, in alphabetical order."""
        before = [step.before for step in self.history]
        factors = [entry for entry in before if isinstance(entry, Factor)]
        names = {factor.name for factor in [*self.factors.values(), *factors]}
        return sorted(names - {""}, key=str.casefold)

    def count(self, status: str, names: Sequence[str]) -> int:
        """How many of the images have a status."""
        return sum(self.image(name).status == status for name in names)


def set_settings(labels: Labels, **changes: Any) -> Labels:
    """Change k, threshold, value or refinement; a new threshold brings its default value.

    Moves of the value alone, one after the other, are taken back by one `undo`.
    """
    settings = replace(labels.settings, **changes)
    if settings.threshold != labels.settings.threshold and "value" not in changes:
        settings = settings.with_threshold(settings.threshold)
    last = labels.history[-1] if labels.history else None
    if (
        last is not None
        and isinstance(last.before, Settings)
        and _moved(last.before, labels.settings)
        and _moved(labels.settings, settings)
    ):
        labels = replace(_put(labels, None, last.before), history=labels.history[:-1])
    return _edit(labels, None, settings)


def _moved(before: Settings, after: Settings) -> bool:
    """Whether the value alone was changed."""
    return before != after and replace(before, value=after.value) == after


def name_factor(labels: Labels, number: int, name: str) -> Labels:
    """Name a factor of the chosen k; white space around and inside is evened out."""
    factor = replace(labels.factor(number), name=" ".join(name.split()))
    return _edit(labels, (labels.settings.k, number), factor)


def keep_factor(labels: Labels, number: int, keep: bool) -> Labels:
    """Keep a factor of the chosen k, or take it for background."""
    return _edit(labels, (labels.settings.k, number), replace(labels.factor(number), keep=keep))


def set_status(labels: Labels, image: str, status: str) -> Labels:
    """Accept or skip an image, or neither ("")."""
    return _edit(labels, image, replace(labels.image(image), status=status))


def drop_factors(labels: Labels, image: str, numbers: Collection[int], drop: bool) -> Labels:
    """Take factors of the chosen k for background in one image, or no longer."""
    label, before = labels.image(image), {*labels.dropped(image)}
    after = before.union(numbers) if drop else before.difference(numbers)
    dropped = {k: held for k, held in label.dropped.items() if k != labels.settings.k}
    if after:
        dropped[labels.settings.k] = tuple(sorted(after))
    return _edit(labels, image, replace(label, dropped=dropped))


def undo(labels: Labels) -> Labels:
    """Take the last edit back; nothing changes where there is none."""
    if not labels.history:
        return labels
    last = labels.history[-1]
    labels = _put(labels, last.key, last.before)
    return replace(labels, history=labels.history[:-1], revision=labels.revision + 1)


def _edit(labels: Labels, key: Any, after: Settings | Factor | ImageLabel) -> Labels:
    before = _entry(labels, key)
    if after == before:
        return labels
    history = (*labels.history, Step(key, before))[-HISTORY_LENGTH:]
    return replace(_put(labels, key, after), history=history, revision=labels.revision + 1)


def _entry(labels: Labels, key: Any) -> Settings | Factor | ImageLabel:
    if key is None:
        return labels.settings
    return labels.image(key) if isinstance(key, str) else labels.factors.get(key, Factor())


def _put(labels: Labels, key: Any, entry: Any) -> Labels:
    """The labels with one entry replaced; an entry that says nothing is not kept."""
    if key is None:
        return replace(labels, settings=entry)
    entries: dict[Any, Any] = {**(labels.images if isinstance(key, str) else labels.factors)}
    entries[key] = entry
    if entry == type(entry)():
        del entries[key]
    if isinstance(key, str):
        return replace(labels, images=entries)
    return replace(labels, factors=entries)
