"""Every choice there is to make, what it means and what it is by default, in one place.

The library, the command line, the app and the benchmarks take them from here. Members are strings:
``"otsu"`` can be given wherever ``Threshold.OTSU`` can. Nothing here needs torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, TypeVar

from deepff.errors import InputError

MODEL = "efficientnet_lite0"
N_COMPONENTS = 4
N_PARTS = 3
SIZE = 448  # pixels, the longer side of resized images
BATCH_SIZE = 8
LEAST_SHARE = 2e-4  # of an image's pixels: what is smaller is a speck
SIMPLIFY = 2.0  # pixels
SPLIT = (80.0, 20.0, 0.0)  # train, val, test
SUBSETS = ("train", "val", "test")
MIN_MEMORY = 256 * 2**20  # bytes

Choice = TypeVar("Choice", bound=StrEnum)


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class Engine(StrEnum):
    """What runs the network; auto: OpenVINO on a CPU where it is installed and pays, else torch."""

    AUTO = "auto"
    TORCH = "torch"
    OPENVINO = "openvino"


class Interpolation(StrEnum):
    """How images are resized."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Method(StrEnum):
    """How activations are factorised; auto: by NMF, or by semi-NMF where they go negative."""

    AUTO = "auto"
    NMF = "nmf"
    SEMI_NMF = "semi-nmf"
    PCA = "pca"
    KMEANS = "kmeans"


# For those who read a result without having chosen.
METHODS_IN_WORDS: dict[str, str] = {
    Method.NMF: "NMF: activations, factors and coefficients are never negative",
    Method.SEMI_NMF: "semi-NMF: coefficients are never negative, activations and factors may be",
    Method.PCA: "PCA: factors are orthogonal, and coefficients go negative",
    Method.KMEANS: "k-means: each cell has one factor",
}


class Solver(StrEnum):
    """How NMF is solved: HALS, or the paper's multiplicative updates."""

    HALS = "hals"
    MU = "mu"


class Recipe(StrEnum):
    """A way from images to regions: the paper's, or the object by contrast with the border."""

    PAPER = "paper"
    CONTRAST = "contrast"


class ChannelWeights(StrEnum):
    """What channels are multiplied with before the factorization."""

    NONE = "none"
    BORDER = "border"


class Threshold(StrEnum):
    """How a heat map becomes a mask; all but ``otsu-image`` are over the whole set."""

    PERCENTILE = "percentile"
    OTSU = "otsu"
    OTSU_IMAGE = "otsu-image"
    MAX_FRACTION = "max-fraction"


class Refinement(StrEnum):
    """How regions follow the edges of the image; ``classifier`` is what the set taught itself.

    Each of the others is the file in ``regions/`` with its name.
    """

    NONE = "none"
    GUIDED_CRF = "guided-crf"
    DENSE_CRF = "dense-crf"
    CLASSIFIER = "classifier"


class ExportFormat(StrEnum):
    """What annotations are written for."""

    COCO = "coco"
    COCO_POLYGONS = "coco-polygons"
    YOLO = "yolo"
    YOLO_SEG = "yolo-seg"
    VOC = "voc"
    LABELME = "labelme"
    LABEL_STUDIO = "label-studio"
    CVAT = "cvat"
    PNG = "png"


class Instances(StrEnum):
    """What one annotation is: a connected component, or all of a part in an image."""

    COMPONENTS = "components"
    PARTS = "parts"


class Which(StrEnum):
    """Which images of a labelled set are exported."""

    ACCEPTED = "accepted"
    NOT_SKIPPED = "not-skipped"
    ALL = "all"


class Photographs(StrEnum):
    """What becomes of the photographs in an export: copies, links to each, or nothing."""

    COPY = "copy"
    LINK = "link"
    NONE = "none"


class SimilarBy(StrEnum):
    """What tells how like two places are: their activations, or their factors."""

    ACTIVATIONS = "activations"
    FACTORS = "factors"


class VocFilter(StrEnum):
    """Which VOC images are left out: those whose objects of the class are all this."""

    DIFFICULT_OR_TRUNCATED = "difficult-or-truncated"
    DIFFICULT = "difficult"


# The value that a threshold takes, by default and at the least and most.
THRESHOLD_VALUES: dict[Threshold, tuple[float, float, float]] = {
    Threshold.PERCENTILE: (75.0, 0.0, 100.0),
    Threshold.MAX_FRACTION: (0.5, 0.0, 1.0),
}


def chosen(choices: type[Choice], value: str, what: str) -> Choice:
    """The choice that ``value`` names.

    Parameters
    ----------
    choices : StrEnum
        What there is to choose from.
    value : str
    what : str
        What is chosen, for the message: "recipe".

    Raises
    ------
    InputError
        There is no such choice; the message names those that there are.
    """
    try:
        return choices(value)
    except ValueError:
        raise InputError(
            f"there is no {what} {value!r}; choose one of {', '.join(choices)}"
        ) from None


def threshold_value(threshold: str, value: float | None = None) -> float | None:
    """The value that goes with a threshold: the one given, else the default; None where it has
    none.

    Parameters
    ----------
    threshold : str
        One of :class:`Threshold`.
    value : float, optional
        The percentile, in [0, 100], or the fraction of the maximum, in (0, 1].

    Raises
    ------
    InputError
        No such threshold, a value that is out of its range, or one where there is none to give.
    """
    threshold = chosen(Threshold, threshold, "threshold")
    if threshold not in THRESHOLD_VALUES:
        if value is not None:
            raise InputError(f"the threshold {threshold} takes no value; leave out {value:g}")
        return None
    default, low, high = THRESHOLD_VALUES[threshold]
    if value is None:
        return default
    if threshold == Threshold.PERCENTILE and not low <= value <= high:
        raise InputError(f"a percentile of {value:g} is out of range; it lies between 0 and 100")
    if threshold == Threshold.MAX_FRACTION and not low < value <= high:
        raise InputError(
            f"a fraction of {value:g} of the maximum is out of range; it is above 0 and at most 1"
        )
    return value


@dataclass(frozen=True)
class RegionOptions:
    """How heat maps become regions.

    Attributes
    ----------
    threshold : Threshold
        See :func:`deepff.regions.thresholds.thresholds`.
    value : float or None
        What goes with it, by default :func:`threshold_value`.
    refine : Refinement
        Refine along the edges of the image, see :func:`deepff.regions.guided_crf.guided_crf`
        (DFF-CRF) and :func:`deepff.regions.dense_crf.dense_crf`, after which holes are filled; or
        take the pixel classifier's probabilities in place of the heat maps, and the dense CRF of
        these (:mod:`deepff.regions.pixel_classifier`). The threshold is then at 1/2.
    parts : mapping of int to str, optional
        Names of factors. Factors of one name make one region, those without a name none. Without
        it every factor is a region.

    Raises
    ------
    InputError
        There is no such threshold or refinement, or the value does not go with the threshold.
    """

    threshold: str = Threshold.PERCENTILE
    value: float | None = None
    refine: str = Refinement.NONE
    parts: Mapping[int, str] | None = None

    def __post_init__(self) -> None:
        # Frozen: what was given as plain text is held as the choice that it names.
        object.__setattr__(self, "value", threshold_value(self.threshold, self.value))
        object.__setattr__(self, "threshold", Threshold(self.threshold))
        object.__setattr__(self, "refine", chosen(Refinement, self.refine, "refinement"))
        if self.parts is not None and not (isinstance(self.parts, Mapping) and self.parts):
            raise InputError(f"parts name factors, such as {{0: 'head'}}, not {self.parts!r}")

    def __str__(self) -> str:
        if self.refine == Refinement.CLASSIFIER:
            return "the set's pixel classifier, refined by dense CRF"
        value = "" if self.value is None else f"{self.value:g}"
        rules = {
            Threshold.PERCENTILE: f"threshold: percentile {value} over the set",
            Threshold.MAX_FRACTION: f"threshold: {value} of the maximum over the set",
            Threshold.OTSU: "threshold: Otsu over the set",
            Threshold.OTSU_IMAGE: "threshold: Otsu per image",
        }
        words = {Refinement.GUIDED_CRF: "CRF", Refinement.DENSE_CRF: "dense CRF"}
        refined = ""
        if self.refine != Refinement.NONE:
            refined = f", refined by {words.get(Refinement(self.refine), self.refine)}"
        return rules[Threshold(self.threshold)] + refined


@dataclass(frozen=True)
class ExportOptions:
    """How instances become annotations.

    Attributes
    ----------
    instances : Instances
    min_area : int, optional
        Annotations of fewer pixels are left out; by default of fewer than
        :func:`deepff.regions.components.least_area`.
    simplify : float
        How far, in pixels, corners that polygons leave out may lie beside them; less where more
        than 1 % of a mask would change. 0 keeps all corners, and so every pixel.
    images : Photographs, optional
        In formats whose readers look for the photographs in a folder of their own. By default links
        for YOLO, and nothing elsewhere.
    split : (train, val, test)
        In what proportion images are drawn for training, validation and test.
    seed : int
        Of the drawing.
    overwrite : bool
        Replace files that deepff did not write, or that were changed since; never photographs.
    anew : bool
        Remove what an earlier export left in the folder and this one does not write.
    memory : int, optional
        See :func:`deepff.regions.regions.find_regions`.

    Raises
    ------
    InputError
        One of them is out of its range.
    """

    instances: str = Instances.COMPONENTS
    min_area: int | None = None
    simplify: float = SIMPLIFY
    images: str | None = None
    split: tuple[float, float, float] = SPLIT
    seed: int = 0
    overwrite: bool = False
    anew: bool = False
    memory: int | None = None

    def __post_init__(self) -> None:
        chosen(Instances, self.instances, "kind of instance")
        if self.images is not None:
            chosen(Photographs, self.images, "way with photographs")
        if not isinstance(self.simplify, int | float) or not 0 <= self.simplify < float("inf"):
            raise InputError(f"polygons are simplified by 0 pixels or more, not {self.simplify!r}")
        if len(self.split) != 3 or min(self.split) < 0 or self.split[0] <= 0:
            raise InputError("a split has three shares, train, val and test, the first above 0")


class RegionSettings(TypedDict, total=False):
    """What `RegionOptions` may be made with: the region settings that `Result`'s verbs share."""

    threshold: str | None
    value: float | None
    refine: str | None
    parts: Mapping[int, str] | None


class ExportSettings(RegionSettings, total=False):
    """The settings of `Result.export`: those of the regions, and those of `ExportOptions`."""

    instances: str
    min_area: int | None
    simplify: float
    images: str | None
    split: tuple[float, float, float]
    seed: int
    overwrite: bool
    anew: bool
    memory: int | None


def parsed_split(text: str) -> tuple[float, float, float]:
    """The shares of training, validation and test from text such as "80/10/10" or "80/20".

    Raises
    ------
    InputError
        It is no such text.
    """
    if not re.fullmatch(r"\d+(\.\d+)?(/\d+(\.\d+)?){1,2}", text):
        raise InputError(f"a split is shares such as 80/10/10 or 80/20, not {text!r}")
    shares = [*map(float, text.split("/")), 0.0]
    return shares[0], shares[1], shares[2]


# What each recipe does from the maps on.
RECIPE_OPTIONS: dict[str, RegionOptions] = {
    Recipe.PAPER: RegionOptions(),
    Recipe.CONTRAST: RegionOptions(Threshold.OTSU_IMAGE, refine=Refinement.CLASSIFIER),
}


def region_options(
    recipe: str,
    threshold: str | None = None,
    value: float | None = None,
    refine: str | None = None,
    parts: Mapping[int, str] | None = None,
    *,
    for_boxes: bool = False,
) -> RegionOptions:
    """A recipe's way to make regions, but for what is chosen otherwise.

    Parameters
    ----------
    recipe : str
        One of :class:`Recipe`.
    threshold, value, refine, parts : optional
        See :class:`RegionOptions`.
    for_boxes : bool
        Whether boxes are wanted, not masks. The classifier makes masks better and boxes worse
        (docs/objects.md), so these are from the dense CRF unless asked for otherwise.

    Raises
    ------
    InputError
        As :class:`RegionOptions`, or there is no such recipe; or a threshold beside the classifier,
        which has none.
    """
    defaults = RECIPE_OPTIONS[chosen(Recipe, recipe, "recipe")]
    if threshold is not None and refine == Refinement.CLASSIFIER:
        raise InputError(
            "the classifier's regions are where its probability is 1/2 or more; leave out the "
            "threshold, or refine by dense-crf"
        )
    by_default = defaults.value if threshold is None and value is None else value
    if refine is None:
        refine = defaults.refine
        if refine == Refinement.CLASSIFIER and (for_boxes or threshold is not None):
            refine = Refinement.DENSE_CRF
    return RegionOptions(threshold or defaults.threshold, by_default, refine, parts)
