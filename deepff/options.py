"""Every option: what it means, and its default.

The library, the command line, the app and the benchmarks share them. Choices are strings: wherever
``Threshold.OTSU`` is accepted, ``"otsu"`` is too. Nothing here needs torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypedDict, TypeVar

from deepff.errors import InputError

MODEL = "efficientnet_lite0"
N_COMPONENTS = 4
N_PARTS = 3
SIZE = 448  # pixels, the longer side of resized images
BATCH_SIZE = 8
LEAST_SHARE = 2e-4  # of an image's pixels: anything smaller is a speck
SIMPLIFY = 2.0  # pixels
SPLIT = (80.0, 20.0, 0.0)  # train, val, test
SUBSETS = ("train", "val", "test")
MIN_SCORE = 0.5  # of an instance, on the scale of the bank that was applied
MIN_SCORE_OF_SET = 0.003  # in the set itself, where only outliers are left out
MIN_MEMORY = 256 * 2**20  # bytes

Choice = TypeVar("Choice", bound=StrEnum)


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class Engine(StrEnum):
    """What runs the network; auto: OpenVINO on a CPU if it is installed and faster, else torch."""

    AUTO = "auto"
    TORCH = "torch"
    OPENVINO = "openvino"


class Interpolation(StrEnum):
    """How images are resized."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Method(StrEnum):
    """How activations are factorized; auto: by NMF, or by semi-NMF where they go negative."""

    words: str  # for readers of a result who did not choose the method

    AUTO = "auto", ""
    NMF = "nmf", "NMF (non-negative matrix factorization): no value is below 0"
    SEMI_NMF = (
        "semi-nmf",
        "semi-NMF: coefficients are never negative, but activations and factors may be",
    )
    PCA = "pca", "PCA: factors are orthogonal, and coefficients may be negative"
    KMEANS = "kmeans", "k-means: each cell belongs to one factor"

    def __new__(cls, name: str, words: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.words = name, words
        return member


METHODS_IN_WORDS = {method.value: method.words for method in Method}


class Solver(StrEnum):
    """How NMF is solved: HALS, or the paper's multiplicative updates."""

    HALS = "hals"
    MU = "mu"


class Recipe(StrEnum):
    """A way from images to regions: the paper's, or the object by contrast with the border."""

    PAPER = "paper"
    CONTRAST = "contrast"


class ChannelWeights(StrEnum):
    """The weights that channels are multiplied by before the factorization."""

    NONE = "none"
    BORDER = "border"


class Threshold(StrEnum):
    """How a heat map becomes a mask; all but ``otsu-image`` are over the whole set."""

    PERCENTILE = "percentile"
    OTSU = "otsu"
    OTSU_IMAGE = "otsu-image"
    MAX_FRACTION = "max-fraction"


class Refinement(StrEnum):
    """How regions follow the edges of the image; ``classifier`` learns from the set's masks."""

    NONE = "none"
    DFF_CRF = "dff-crf"
    GUIDED_CRF = "guided-crf"
    DENSE_CRF = "dense-crf"
    CLASSIFIER = "classifier"


# Parts share the object's pixels, so they are refined together.
PART_REFINEMENTS = (Refinement.NONE, Refinement.DENSE_CRF, Refinement.CLASSIFIER)


class ExportFormat(StrEnum):
    """The formats of annotations. ``write_<name>`` in the file of `deepff.export` writes one."""

    file: str
    contents: tuple[str, ...]  # what each instance is written as

    COCO = "coco", "coco", ("masks", "boxes")
    COCO_POLYGONS = "coco-polygons", "coco", ("masks", "boxes")
    YOLO = "yolo", "yolo", ("boxes",)
    YOLO_SEG = "yolo-seg", "yolo", ("masks",)
    VOC = "voc", "voc", ("masks", "boxes")
    LABELME = "labelme", "labeling_tools", ("masks",)
    LABEL_STUDIO = "label-studio", "labeling_tools", ("masks",)
    CVAT = "cvat", "labeling_tools", ("masks",)
    PNG = "png", "png", ("masks",)
    PARQUET = "parquet", "coco", ("masks", "boxes")

    def __new__(cls, name: str, file: str, contents: tuple[str, ...]) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.file, member.contents = file, contents
        return member


class Instances(StrEnum):
    """What one annotation covers: a connected component, or all of a part in an image."""

    COMPONENTS = "components"
    PARTS = "parts"


class Which(StrEnum):
    """Which images of a labeled set are exported."""

    ACCEPTED = "accepted"
    NOT_SKIPPED = "not-skipped"
    ALL = "all"


class Photographs(StrEnum):
    """What an export writes for the photographs: copies, links, or nothing."""

    COPY = "copy"
    LINK = "link"
    NONE = "none"


class SimilarBy(StrEnum):
    """What the similarity of two points is measured by: their activations, or their factors."""

    ACTIVATIONS = "activations"
    FACTORS = "factors"


class PictureStyle(StrEnum):
    """How factors are painted: the strongest one of each pixel, mixed, or lines around them."""

    STRONGEST = "strongest"
    MIXED = "mixed"
    CONTOURS = "contours"


class VocFilter(StrEnum):
    """VOC images are left out if all their objects of the class are this."""

    DIFFICULT_OR_TRUNCATED = "difficult-or-truncated"
    DIFFICULT = "difficult"


# A threshold's default value, and the smallest and largest possible.
THRESHOLD_VALUES: dict[Threshold, tuple[float, float, float]] = {
    Threshold.PERCENTILE: (75.0, 0.0, 100.0),
    Threshold.MAX_FRACTION: (0.5, 0.0, 1.0),
}


def chosen(choices: type[Choice], value: str, what: str) -> Choice:
    """The choice with the value; `what` is chosen, for the message if there is none: "recipe"."""
    try:
        return choices(value)
    except ValueError:
        raise InputError(
            f"there is no {what} {value!r}; choose one of {', '.join(choices)}"
        ) from None


def threshold_value(threshold: str, value: float | None = None) -> float | None:
    """A threshold's value: a percentile in [0, 100] or a fraction of the maximum in (0, 1], by
    default the method's; None if it has none."""
    threshold = chosen(Threshold, threshold, "threshold")
    if threshold not in THRESHOLD_VALUES:
        if value is not None:
            raise InputError(f"the threshold {threshold} takes no value; leave out {value:g}")
        return None
    default, low, high = THRESHOLD_VALUES[threshold]
    if value is None:
        return default
    if threshold == Threshold.PERCENTILE and not low <= value <= high:
        raise InputError(f"a percentile of {value:g} is out of range; use 0 to 100")
    if threshold == Threshold.MAX_FRACTION and not low < value <= high:
        raise InputError(
            f"a fraction of {value:g} of the maximum is out of range; use more than 0 and at most 1"
        )
    return value


@dataclass(frozen=True)
class RegionOptions:
    """How heat maps become regions; InputError where options do not fit each other.

    Attributes
    ----------
    threshold : Threshold
    value : float, optional
        The percentile, by default 75, or the fraction of the maximum, by default 0.5.
    refine : Refinement
        Follow the edges of the image. The paper's DFF-CRF refines the heat maps, and the threshold
        is one of the refined maps. The guided CRF and the dense CRF, which fills holes afterwards,
        refine probabilities that are 1/2 at the threshold, and end where they are 1/2. The
        classifier's probabilities replace the heat maps, and are refined by the dense CRF.
    parts : mapping of int to str, optional
        Names of factors. Factors of one name make one region, those without a name none. Without
        it every factor is a region.
    min_score : float, optional
        The least score of an object's instance, in [0, 1]; what has less is left out, and 0 keeps
        all. By default 0.5 where a bank was applied, and in the set that made it 0.003, which
        leaves out what is like no other instance.
    """

    threshold: str = Threshold.PERCENTILE
    value: float | None = None
    refine: str = Refinement.NONE
    parts: Mapping[int, str] | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        # The class is frozen, and plain text is kept as the choice that it names.
        object.__setattr__(self, "value", threshold_value(self.threshold, self.value))
        object.__setattr__(self, "threshold", Threshold(self.threshold))
        object.__setattr__(self, "refine", chosen(Refinement, self.refine, "refinement"))
        if self.parts is not None and not (isinstance(self.parts, Mapping) and self.parts):
            raise InputError(
                f"parts map factors to names, such as {{0: 'head'}}, not {self.parts!r}"
            )
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise InputError(f"min_score is {self.min_score:g}; use a score from 0 to 1")

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
        refined = {
            Refinement.NONE: "",
            Refinement.DFF_CRF: ", of heat maps refined by DFF-CRF",
            Refinement.GUIDED_CRF: ", refined by guided CRF",
            Refinement.DENSE_CRF: ", refined by dense CRF",
        }
        return rules[Threshold(self.threshold)] + refined[Refinement(self.refine)]


@dataclass(frozen=True)
class ExportOptions:
    """How instances become annotations; InputError where an option is out of its range.

    Attributes
    ----------
    instances : Instances
    min_area : int, optional
        Annotations of fewer pixels are left out; by default of less than 0.02 % of the image.
    simplify : float
        How far, in pixels, polygons may cut corners; less where more than 1 % of a mask would
        change. 0 keeps all corners, and so every pixel.
    images : Photographs, optional
        For formats whose readers look for the photographs in a certain folder. By default
        copies for COCO and VOC, links for YOLO, and nothing for others.
    split : (train, val, test), optional
        In what proportion images are drawn for training, validation and test, by ``seed``. By
        default 80 to 20 to 0 for YOLO and VOC, while COCO's images are in one file.
    overwrite : bool
        Replace files that deepff did not write, or that were changed since; never photographs.
    anew : bool
        Remove what an earlier export left in the folder and this one does not write.
    memory : int, optional
        The bytes that images in work may take together.
    """

    instances: str = Instances.COMPONENTS
    min_area: int | None = None
    simplify: float = SIMPLIFY
    images: str | None = None
    split: tuple[float, float, float] | None = None
    seed: int = 0
    overwrite: bool = False
    anew: bool = False
    memory: int | None = None

    def __post_init__(self) -> None:
        chosen(Instances, self.instances, "kind of instance")
        if self.images is not None:
            chosen(Photographs, self.images, "way with photographs")
        if not isinstance(self.simplify, int | float) or not 0 <= self.simplify < float("inf"):
            raise InputError(f"simplify must be 0 pixels or more, not {self.simplify!r}")
        split = self.split or SPLIT
        if len(split) != 3 or min(split) < 0 or split[0] <= 0:
            raise InputError("a split needs three shares (train, val, test), with train above 0")


class RegionSettings(TypedDict, total=False):
    """What `RegionOptions` may be made with: the region settings that `Result`'s verbs share."""

    threshold: str | None
    value: float | None
    refine: str | None
    parts: Mapping[int, str] | None
    min_score: float | None


class ExportSettings(RegionSettings, total=False):
    """The settings of `Result.export`: those of the regions, and those of `ExportOptions`."""

    instances: str
    min_area: int | None
    simplify: float
    images: str | None
    split: tuple[float, float, float] | None
    seed: int
    overwrite: bool
    anew: bool
    memory: int | None


def parsed_split(text: str) -> tuple[float, float, float]:
    """The percentages of training, validation and test from text such as "80/10/10" or "80/20"."""
    if not re.fullmatch(r"\d+(\.\d+)?(/\d+(\.\d+)?){1,2}", text):
        raise InputError(f"a split needs percentages such as 80/10/10 or 80/20, not {text!r}")
    shares = [*map(float, text.split("/")), 0.0]
    if abs(sum(shares) - 100) > 1e-6:
        raise InputError(
            f"a split must add up to 100 percent, as 80/10/10; {text} adds up to {sum(shares):g}"
        )
    return shares[0], shares[1], shares[2]


# How each recipe makes regions of heat maps.
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
    min_score: float | None = None,
) -> RegionOptions:
    """A recipe's region options, with those that are passed in place of the recipe's. A threshold
    excludes the classifier, which has none."""
    defaults = RECIPE_OPTIONS[chosen(Recipe, recipe, "recipe")]
    if threshold is not None and refine == Refinement.CLASSIFIER:
        raise InputError(
            "the classifier uses no threshold (a region is where its probability is 1/2 or more); "
            "leave out the threshold, or refine with dense-crf"
        )
    value = defaults.value if threshold is None and value is None else value
    if refine is None:
        refine = defaults.refine
        if refine == Refinement.CLASSIFIER and threshold is not None:
            refine = Refinement.DENSE_CRF
    return RegionOptions(threshold or defaults.threshold, value, refine, parts, min_score)
