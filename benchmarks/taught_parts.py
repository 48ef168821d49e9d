"""Parts of cars that the masks of a few teach the others: IoU by part.

    OMP_NUM_THREADS=1 python benchmarks/taught_parts.py DATA/car_parts FOLDER [--draws 2 3]

A draw of 6, and of 12, cars teaches with their true masks, one class per pixel; all others are the
test, at their full size. FOLDER is made, and holds what was taught.
"""

import argparse
from pathlib import Path

import numpy as np

import deepff
from deepff.app.labels import Labels, Settings
from deepff.app.lessons import Lesson, write_lesson
from deepff.app.masks import Masks
from deepff.discovery.teaching import classified, teach
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco

MERGED = {
    name: "hood/trunk" if part in ("hood", "trunk") else part for name, part in CAR_PARTS.items()
}


def on_top(labels: np.ndarray) -> np.ndarray:
    """The smallest part of each pixel."""
    return (labels & 255).astype(np.uint8)


def shows(labels: np.ndarray, part: int) -> np.ndarray:
    """Where a part is, on top or below others."""
    shown = on_top(labels) == part
    return shown | shows(labels >> 8, part) if labels.max() > 255 else shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cars", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, nargs="+", default=[2, 3])
    asked = parser.parse_args()
    cars = load_coco(asked.cars, merge=MERGED)
    n_parts = len(cars.part_names)
    result = deepff.discover([car.image.path for car in cars.images], 2)
    print("teachers, draw:", *cars.part_names, "mean")
    for n in (6, 12):
        for draw in asked.draws:
            teachers = np.random.default_rng(draw).permutation(len(cars))[:n].tolist()
            masks = {result.names[i]: on_top(cars.images[i].labels()) for i in teachers}
            classifier = teach(result, masks, n_parts)
            maps = classified(classifier, [image.item for image in result.images])
            lesson = write_lesson(Lesson(maps, classifier), asked.folder)
            settings = Settings(2, lesson=lesson, taught=cars.part_names)
            labels, made = Labels("", settings, asked.folder), Masks(result)
            both, either = np.zeros(n_parts), np.zeros(n_parts)
            for index in set(range(len(cars))).difference(teachers):
                values = made.made(labels, result.names[index]).values
                truth = cars.images[index].labels()
                for part in range(n_parts):
                    shown = shows(truth, part + 1)
                    both[part] += np.count_nonzero(shown & (values == part + 1))
                    either[part] += np.count_nonzero(shown | (values == part + 1))
            ious = both / either
            print(n, f"{draw}:", *(f"{iou:.3f}" for iou in ious), f"{ious.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
