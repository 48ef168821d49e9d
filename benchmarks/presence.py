"""Which images show an animal, by the scores of a bank that knows 60.

    python benchmarks/presence.py DATA [--draws 5] [--kinds 1] [--cache FOLDER]

DATA holds VOCdevkit/. Each draw makes a bank of 60 of the animal photographs of VOC 2007, and
applies it to the other images, once as it is and once `without` 100 images of no animal, which are
not tested. Printed are the area under the ROC curve of the images' scores, and how many of the
images with and without animals have a score of 0.5 or more.
"""

import argparse
import random
import warnings

import numpy as np
from sklearn.metrics import roc_auc_score

import deepff
from deepff.evaluation.datasets.pascal import find_voc, read_boxes
from deepff.networks.loading import load_backbone

ANIMALS = {"bird", "cat", "cow", "dog", "horse", "sheep"}
N_BANK, N_WITHOUT = 60, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--kinds", type=int, default=None, help="by default as many as there are")
    parser.add_argument("--cache", default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    voc = find_voc(f"{options.data}/VOCdevkit")
    photos = sorted(voc.glob("JPEGImages/*.jpg"))
    boxes = {path: read_boxes(voc / "Annotations" / f"{path.stem}.xml") for path in photos}
    animals = [path for path in photos if {box.class_name for box in boxes[path]} & ANIMALS]
    others = [path for path in photos if path not in animals]
    backbone = load_backbone()
    figures: dict[str, list[tuple[float, float, float]]] = {"bank alone": [], "without": []}
    for seed in range(options.first, options.first + options.draws):
        drawn = random.Random(seed)
        known, empty = set(drawn.sample(animals, N_BANK)), set(drawn.sample(others, N_WITHOUT))
        tested = [path for path in photos if path not in known | empty]
        is_animal = np.array([path in animals for path in tested])
        common = {"model": backbone, "cache": options.cache}
        kinds = options.kinds or "auto"
        bank = deepff.discover(sorted(known), recipe="contrast", kinds=kinds, **common).bank
        for name, without in (("bank alone", None), ("without", sorted(empty))):
            scores = deepff.apply(bank, tested, without=without, **common).scores().amax(1).numpy()
            kept = scores >= 0.5
            auc = roc_auc_score(is_animal, scores)
            figures[name].append((auc, kept[is_animal].mean(), kept[~is_animal].mean()))
            print(seed, name, *(f"{figure:.3f}" for figure in figures[name][-1]), flush=True)
    for name, rows in figures.items():
        auc, with_animals, without_any = np.mean(rows, axis=0)
        least, most = (each[0] for each in (min(rows), max(rows)))
        print(
            f"{name}: area {auc:.3f} ({least:.3f} to {most:.3f}); at 0.5 {with_animals:.0%} of the "
            f"images with animals, {without_any:.0%} of the others"
        )


if __name__ == "__main__":
    main()
