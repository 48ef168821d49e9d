"""Lessons: what masks that somebody looked at teach the set about the object, or about classes.

A lesson is a file of new probabilities, with the classifier that images get theirs by which are
added later. The settings name the one that counts, so that `undo` takes it back. It changes no mask
that an image keeps. The one that counts is a concept bank too, which works alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deepff.activations.activations import FeatureSource
from deepff.app.kept_masks import FOLDER, LESSON, kept_mask
from deepff.app.labels import OBJECT, SKIPPED, Labels, Settings
from deepff.errors import InputError
from deepff.images.image_set import SetImage
from deepff.networks.backbone import Backbone
from deepff.options import Recipe, Refinement, Threshold
from deepff.results.classifier import PixelClassifier
from deepff.results.concept_bank import ConceptBank
from deepff.results.factorization import FactorClasses, Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import Histogram
from deepff.results.run import Run
from deepff.runtime.files import atomic_path

_MAPS = "maps/"  # before images' names in a file
TAUGHT = f"taught{LESSON}"


@dataclass
class Teaching:
    """A lesson that is being worked out, or waits to be used or dropped."""

    total: int  # images that go through the network
    n_teachers: int
    classes: tuple[str, ...] = ()  # Settings.taught
    done: int = 0  # images that went through it
    lesson: str = ""  # its file, once it is written
    agreements: np.ndarray = field(default_factory=lambda: np.zeros(0))  # IoU before and after
    error: str | None = None

    def taught(self, labels: Labels) -> Labels:
        """The labels with the lesson."""
        settings = replace(labels.settings, lesson=self.lesson, taught=self.classes)
        return replace(labels, settings=settings)


@dataclass(frozen=True)
class Lesson:
    """What was taught."""

    maps: Mapping[str, Tensor]  # how likely each cell is each class, (k, h, w) by image name
    classifier: PixelClassifier | None  # None in lessons of older versions


def classes_to_teach(run: Run, labels: Labels) -> tuple[str, ...]:
    """The classes that masks can teach; none where they teach what the object is. That is where the
    object has a classifier, and factors name its pieces."""
    masks = [labels.image(name).mask for name in teachers(labels, run.names)]
    shown = {name for mask in masks if mask is not None for name in mask.names}
    settings = labels.settings
    of_object = (
        settings.masks == OBJECT
        and not settings.taught
        and run.object is not None
        and run.object.factorization(1).classifier is not None
        and shown <= {*labels.parts.values()}
    )
    return () if of_object else tuple(name for name in labels.all_classes if name in shown)


def known_to_teach(
    run: Run, labels: Labels, classes: tuple[str, ...]
) -> tuple[Run, HeatMaps | None, tuple[FeatureSource, ...]]:
    """What is taught, how likely the classes were in it before, and the layers if not new ones."""
    whole = run.object
    if not classes and whole is not None:
        classifier = whole.factorization(1).classifier
        assert classifier is not None
        return whole, _probabilities(whole), classifier.sources
    likely = run.factorization(labels.settings.k).probabilities
    if not run.is_object or likely is None or not {*classes} <= {*labels.parts.values()}:
        return run, None, ()
    is_of_class = [[labels.parts.get(j) == c for c in classes] for j in range(labels.settings.k)]
    coefficients = likely.coefficients @ torch.tensor(is_of_class).to(likely.coefficients)
    return run, likely.replace(coefficients=coefficients, scale=torch.ones(len(classes))), ()


def teachers(labels: Labels, names: list[str]) -> list[str]:
    """The images whose masks somebody looked at: accepted or mended, and not skipped."""
    return [
        name
        for name in names
        if labels.image(name).mask is not None and labels.image(name).status != SKIPPED
    ]


def pupils(labels: Labels, names: list[str]) -> list[int]:
    """The indices of the images that a lesson may change: those that keep no mask."""
    return [index for index, name in enumerate(names) if labels.image(name).mask is None]


def teacher_masks(
    labels: Labels, names: list[str], classes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Where the classes, or else the object, are in the images that teach: (H, W) by name. Masks
    whose files are gone or damaged teach nothing."""
    masks = {}
    for name in teachers(labels, names):
        with suppress(InputError):
            if (mask := kept_mask(labels, name)) is not None:
                numbers = [classes.index(n) + 1 if classes else 1 for n in mask.names]
                masks[name] = mask.renumbered(numbers)
    return masks


def write_lesson(lesson: Lesson, folder: Path) -> str:
    """Write a lesson into a result's folder; returns the file's name."""
    tensors = {_MAPS + n: (255 * maps).round().byte() for n, maps in lesson.maps.items()}
    metadata = {}
    if lesson.classifier is not None:
        tensors |= {"weights": lesson.classifier.weights, "bias": lesson.classifier.bias}
        metadata["sources"] = json.dumps([asdict(source) for source in lesson.classifier.sources])
        metadata |= {"by_hand": "yes"} if lesson.classifier.by_hand else {}
    content = save({n: tensor.cpu().contiguous() for n, tensor in tensors.items()}, metadata)
    name = f"{sha256(content).hexdigest()[:32]}{LESSON}"
    with atomic_path(folder / FOLDER / name) as temporary:
        temporary.write_bytes(content)
    return name


@lru_cache(2)
def read_lesson(path: Path) -> Lesson:
    """A lesson by :func:`write_lesson`, or one of an older version, which is of the object."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"the lesson {path} cannot be read ({error}); restore the file") from error
    classifier = None
    if "sources" in metadata:
        sources = tuple(map(FeatureSource.from_dict, json.loads(metadata["sources"])))
        parameters = tensors.pop("weights"), tensors.pop("bias")
        classifier = PixelClassifier(*parameters, sources, by_hand="by_hand" in metadata)
    maps = {
        name.removeprefix(_MAPS): of_image.float() / (255 if of_image.dtype == torch.uint8 else 1)
        for name, of_image in tensors.items()
    }
    return Lesson(maps, classifier)


def save_bank(run: Run, settings: Settings, folder: Path) -> None:
    """Write what the settings' lesson finds in any images as a concept bank, `TAUGHT`; without a
    lesson there is no such file."""
    path = folder / FOLDER
    classifier = read_lesson(path / settings.lesson).classifier if settings.lesson else None
    if classifier is None:
        return (path / TAUGHT).unlink(missing_ok=True)
    if settings.taught:
        k, names = len(settings.taught), settings.taught
        bank = ConceptBank(
            {k: classifier.weights.clone()},
            {k: Histogram(torch.zeros(k), torch.ones(k), torch.zeros(k, 1), 1)},
            run.method,
            classifier.sources,
            recipe=Recipe.CONTRAST,
            parts_of="frame",
            classes={k: FactorClasses(names, torch.eye(k), names)},
        )
    else:
        assert run.object is not None
        k, bank = 1, run.object.bank
    replace(bank, classifiers={k: classifier}).save(path / TAUGHT)


def carried(
    labels: Labels, images: Sequence[SetImage], folder: Path, model: Backbone | None = None
) -> str:
    """The file in a result's folder of the labels' lesson for more images, or for others there."""
    from deepff.discovery.teaching import classified

    if not labels.settings.lesson:
        return ""
    lesson = read_lesson(labels.folder / FOLDER / labels.settings.lesson)
    if lesson.classifier is not None:
        before = lesson.maps if folder == labels.folder else {}
        new = classified(lesson.classifier, images, model=model)
        lesson = replace(lesson, maps={**before, **new})
    return write_lesson(lesson, folder)


def taught(run: Run, settings: Settings, folder: Path) -> tuple[Run, Settings]:
    """The run as the settings' lesson has it, if they name one, and the settings for its masks. Of
    images that the lesson lacks, the object stays as it was, and classes are nowhere."""
    if not settings.lesson or not (settings.taught or run.object):
        return run, settings
    lesson = read_lesson(folder / FOLDER / settings.lesson)
    if settings.taught:
        k = len(settings.taught)
        maps = [lesson.maps.get(name, torch.zeros(k, 1, 1)) for name in run.names]
        coefficients = torch.cat([of_image.flatten(1).T for of_image in maps])
        grids = [(of_image.shape[1], of_image.shape[2]) for of_image in maps]
        likely = HeatMaps(coefficients, grids, run.image_sizes, torch.ones(k))
        factor = Factorization(torch.zeros(k, 0), likely, math.nan, 0, lesson.classifier, likely)
        plain = replace(run, object=None, parts_of=None, channel_weights=None, applied=None)
        by_classes = Settings(k, Threshold.MAX_FRACTION, 0.5, Refinement.CLASSIFIER)
        return replace(plain, factorizations={k: factor}, histograms=None), by_classes
    assert run.object is not None
    likely = _probabilities(run.object)
    rows = []
    for index, name in enumerate(run.object.names):
        before = likely.grid(index).flatten()
        cells = lesson.maps.get(name, before).to(before).flatten()
        rows.append(cells if cells.shape == before.shape else before)
    return replace(run, object=with_probabilities(run.object, torch.cat(rows)[:, None])), settings


def with_probabilities(whole: Run, coefficients: Tensor) -> Run:
    """The run of the object with other probabilities, (cells, 1)."""
    maps = _probabilities(whole).replace(coefficients=coefficients)
    factor = replace(whole.factorization(1), probabilities=maps)
    return replace(whole, factorizations={1: factor})


def _probabilities(whole: Run) -> HeatMaps:
    maps = whole.factorization(1).probabilities
    assert maps is not None
    return maps
