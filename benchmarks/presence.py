"""Which images show an animal, by the scores of a bank that knows 60.

    python benchmarks/presence.py DATA [--draws 5] [--kinds 1] [--size 640] [--cache FOLDER]

DATA holds VOCdevkit/. Each draw makes a bank of 60 of the animal photographs of VOC 2007, and
applies it to the other images, once as it is and once `without` 100 images of no animal, which are
not tested. Printed are the area under the ROC curve of the images' scores, and how many of the
images with and without animals have a score of 0.5 or more. For unrefined boxes, it also prints the
average precision, and the largest recall at a precision of 0.5 or more in images of several
animals, with pycocotools at an IoU of 0.5. Animals that VOC marks as difficult count neither way.
"""

import argparse
import contextlib
import io
import random
import warnings

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sklearn.metrics import roc_auc_score

import deepff
from deepff.evaluation.datasets.pascal import find_voc, read_boxes
from deepff.networks.loading import load_backbone

ANIMALS = {"bird", "cat", "cow", "dog", "horse", "sheep"}
N_BANK, N_WITHOUT = 60, 100


def as_coco(box: tuple[float, float, float, float]) -> list[float]:
    x_min, y_min, x_max, y_max = box
    return [x_min, y_min, x_max - x_min, y_max - y_min]


def box_figures(result: deepff.Result, truth: dict) -> tuple[float, float]:
    """The average precision of unrefined boxes; and their recall in images of several."""
    numbers = {name.rsplit("/")[-1]: index for index, name in enumerate(result.names)}
    annotations, several = [], []
    for path, boxes in truth.items():
        if path.name in numbers:
            animals = [each for each in boxes if each.class_name in ANIMALS]
            several += [numbers[path.name]] * (len(animals) > 1)
            annotations += [
                {
                    "id": len(annotations) + index,
                    "image_id": numbers[path.name],
                    "category_id": 1,
                    "bbox": as_coco(each.coordinates),
                    "area": np.prod(as_coco(each.coordinates)[2:]),
                    "iscrowd": int(each.difficult),
                }
                for index, each in enumerate(animals, 1)
            ]
    found = [
        {
            "image_id": numbers[each.image.rsplit("/")[-1]],
            "category_id": 1,
            "bbox": as_coco(each.box),
            "score": each.score,
        }
        for each in result.boxes(min_score=0.0, refine="none")
    ]
    figures = []
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        images = [{"id": index} for index in numbers.values()]
        coco.dataset = {"images": images, "annotations": annotations, "categories": [{"id": 1}]}
        coco.createIndex()
        predicted = coco.loadRes(found)
        for of_images in (sorted(numbers.values()), several):
            evaluation = COCOeval(coco, predicted, "bbox")
            evaluation.params.imgIds, evaluation.params.iouThrs = of_images, np.array([0.5])
            evaluation.evaluate()
            evaluation.accumulate()
            figures.append(evaluation.eval["precision"][0, :, 0, 0, -1])
    return figures[0].mean(), evaluation.params.recThrs[figures[1] >= 0.5].max(initial=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--kinds", type=int, default=None, help="by default as many as there are")
    parser.add_argument("--size", type=int, default=None, help="of new images; by default 448")
    parser.add_argument("--cache", default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    voc = find_voc(f"{options.data}/VOCdevkit")
    photos = sorted(voc.glob("JPEGImages/*.jpg"))
    boxes = {path: read_boxes(voc / "Annotations" / f"{path.stem}.xml") for path in photos}
    animals = [path for path in photos if {box.class_name for box in boxes[path]} & ANIMALS]
    others = [path for path in photos if path not in animals]
    backbone = load_backbone()
    figures: dict[str, list[tuple[float, ...]]] = {"bank alone": [], "without": []}
    for seed in range(options.first, options.first + options.draws):
        drawn = random.Random(seed)
        known, empty = set(drawn.sample(animals, N_BANK)), set(drawn.sample(others, N_WITHOUT))
        tested = [path for path in photos if path not in known | empty]
        is_animal = np.array([path in animals for path in tested])
        common = {"model": backbone, "cache": options.cache}
        kinds = options.kinds or "auto"
        bank = deepff.discover(sorted(known), recipe="contrast", kinds=kinds, **common).bank
        for name, without in (("bank alone", None), ("without", sorted(empty))):
            new = deepff.apply(bank, tested, without=without, size=options.size, **common)
            scores = new.scores().amax(1).numpy()
            kept = scores >= 0.5
            auc = roc_auc_score(is_animal, scores)
            rates = kept[is_animal].mean(), kept[~is_animal].mean()
            figures[name].append((auc, *rates, *box_figures(new, boxes)))
            print(seed, name, *(f"{figure:.3f}" for figure in figures[name][-1]), flush=True)
    for name, rows in figures.items():
        auc, with_animals, without_any, precision, recall = np.mean(rows, axis=0)
        least, most = (each[0] for each in (min(rows), max(rows)))
        print(
            f"{name}: area {auc:.3f} ({least:.3f} to {most:.3f}); at 0.5 {with_animals:.0%} of the "
            f"images with animals, {without_any:.0%} of the others; average precision "
            f"{precision:.3f}, recall in images of several {recall:.3f}"
        )


if __name__ == "__main__":
    main()
