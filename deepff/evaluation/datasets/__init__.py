"""Ground truth of public data sets, all in one form: :mod:`.ground_truth`."""

from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.evaluation.datasets.ground_truth import (
    BACKGROUND,
    IGNORED,
    UNNAMED,
    AnnotatedBox,
    GroundTruthImage,
    GroundTruthSet,
)
from deepff.evaluation.datasets.mask_folders import (
    icoseg_groups,
    load_icoseg,
    load_label_folder,
)
from deepff.evaluation.datasets.pascal_part import TABLE3_PARTS, TABLE4_PARTS, load_pascal_part
from deepff.evaluation.datasets.pascal_voc import VOC_CLASSES, check_classes, load_voc

__all__ = [
    "BACKGROUND",
    "CAR_PARTS",
    "IGNORED",
    "TABLE3_PARTS",
    "TABLE4_PARTS",
    "UNNAMED",
    "VOC_CLASSES",
    "AnnotatedBox",
    "GroundTruthImage",
    "GroundTruthSet",
    "check_classes",
    "icoseg_groups",
    "load_coco",
    "load_icoseg",
    "load_label_folder",
    "load_pascal_part",
    "load_voc",
]
