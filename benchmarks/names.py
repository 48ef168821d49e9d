"""How often a factor's name is right, judged by eye, and what the object of a set is called.

    python benchmarks/names.py DATA [--only sets | pairs | objects] [--cache FOLDER] [--look FOLDER]

DATA holds icoseg/, VOCdevkit/ and car_parts/. `names_judged.json` has the names that a person found
right in each set, and the classes that are right for each kind of a pair; any other name counts as
wrong. `--look` writes what there is to judge: a picture for each name of each set, of the four
images in which its surest factor is strongest.

Sets: the groups of iCoseg, every other car, at most 24 images of each class of VOC 2007. The limits
of names were chosen on every other of these sets.

Pairs: images of two kinds in one set, k = 6; each connected piece of the object is given to the
named factor that is strongest on it, as `deepff label` begins, and an image the class that most of
these pixels have.

Objects: the name of the object of the recipe contrast in each group of iCoseg, with the seconds of
a processor that finding it and naming it took.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import deepff
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.datasets.pascal import VOC_CLASSES, load_voc
from deepff.images.image_files import ImageFile
from deepff.meaning.class_names import factor_classes
from deepff.networks.backbone import Backbone
from deepff.regions.components import named_pieces
from deepff.result import Result

JUDGED = json.loads(Path(__file__).with_name("names_judged.json").read_text("utf-8"))
LAYERS = {"bn2": [2, 4, 6], "blocks.6.0.bn1": [4]}
MOST, OF_A_KIND, N_LOOKED_AT = 24, 14, 4
VERDICTS = ("right", "wrong", "none")
# Chosen on the first four.
PAIRS = (
    ("bear", "elephant"),
    ("goose", "ferrari"),
    ("cat", "aeroplane"),
    ("sheep", "train"),
    ("cheetah", "balloon"),
    ("dog", "boat"),
    ("cow", "tvmonitor"),
    ("bird", "car"),
)
# Groups of iCoseg, and how many images of each.
GROUPS = {
    "bear": ("002", 99),
    "elephant": ("021", 99),
    "goose": ("022", 12),
    "ferrari": ("015", 12),
    "cheetah": ("028", 15),
    "balloon": ("041", 15),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=["sets", "pairs", "objects"])
    parser.add_argument("--cache", type=Path, help="keep activations here for another run")
    parser.add_argument("--look", type=Path, help="write pictures of what is to be judged here")
    return parser.parse_args()


def all_sets(data: Path) -> dict[str, list[ImageFile]]:
    """The images of each set, by the key of the judged names."""
    sets = {
        group.name[:3]: [item.image for item in group.images]
        for group in load_icoseg(data / "icoseg")
    }
    cars = load_coco(data / "car_parts", merge=CAR_PARTS)
    sets["cars"] = [item.image for item in cars.images[::2]]
    for one in load_voc(data / "VOCdevkit", year=2007, classes=VOC_CLASSES):
        sets[one.name] = [item.image for item in one.images[:MOST]]
    return sets


def verdict(name: str | None, right: Sequence[str]) -> str:
    """What a name counts as."""
    return "none" if name is None else "right" if name in right else "wrong"


def judge_sets(
    sets: Mapping[str, list[ImageFile]], backbone: Backbone, cache: Path | None, look: Path | None
) -> None:
    """Print counts for each layer and half of the sets, and every wrong name."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    wrong = []
    for place, (key, files) in enumerate(sets.items()):
        for layer, ks in LAYERS.items():
            result = deepff.discover(files, ks, model=backbone, layer=layer, cache=cache)
            for k in ks:
                names = result.names_of(k)
                verdicts = [verdict(name, JUDGED["sets"][key]) for name in names]
                counts.setdefault((layer, place % 2), Counter()).update(verdicts)
                of_k = zip(names, verdicts, strict=True)
                wrong += [f"{key}, {layer}, k = {k}: {x}" for x, how in of_k if how == "wrong"]
            if look:
                pictures(result, key, look / layer)
    print("| layer | sets | right | wrong | withheld |\n|---|---|--:|--:|--:|")
    for (layer, half), found in sorted(counts.items(), reverse=True):
        figures = " | ".join(str(found[how]) for how in VERDICTS)
        print(f"| {layer} | {'the other half' if half else 'chosen on'} | {figures} |")
    print("\nwrong:", *wrong, sep="\n  ")


def pictures(result: Result, key: str, folder: Path) -> None:
    """One for each name of a set."""
    surest: dict[str, tuple[float, int, int]] = {}
    for k in result.factorizations:
        best = result.classes(k).best(1)
        for factor, name in enumerate(result.names_of(k)):
            if name is not None:
                found = (best[factor][0][1], k, factor)
                surest[name] = max(found, surest.get(name, found))
    for name, (_, k, factor) in surest.items():
        maps = result.factorizations[k].heatmaps
        held = [float(maps.normalized(n)[factor].mean()) for n in range(len(result.images))]
        strongest = sorted(range(len(held)), key=lambda n: -held[n])[:N_LOOKED_AT]
        folder.mkdir(parents=True, exist_ok=True)
        picture = result.plot(images=strongest, k=k, factors=[factor])
        picture.save(folder / f"{key} {name}.png")


def kind(data: Path, name: str) -> list[ImageFile]:
    """Images of one kind: of a group, evenly over it, or of VOC without another class."""
    if name in GROUPS:
        number, most = GROUPS[name]
        images = load_icoseg(data / "icoseg", [number])[0].images
        step = max(1.0, len(images) / most)
        return [images[int(n * step)].image for n in range(min(most, len(images)))]
    images = load_voc(data / "VOCdevkit", year=2007, classes=[name])[0].images
    alone = [x.image for x in images if {box.class_name for box in x.boxes} == {name}]
    return alone[:OF_A_KIND]


def judge_pairs(data: Path, backbone: Backbone, cache: Path | None) -> None:
    """Print what the images of each pair are called."""
    print("| pair | images | right | wrong | none |\n|---|--:|--:|--:|--:|")
    for pair in PAIRS:
        files = {name: kind(data, name) for name in pair}
        images = [image for of_kind in files.values() for image in of_kind]
        result = deepff.discover(images, 6, model=backbone, cache=cache)
        truth = [name for name, of_kind in files.items() for _ in of_kind]
        verdicts = Counter(
            verdict(called, judged(of_kind, result))
            for called, of_kind in zip(called_by_pieces(result), truth, strict=True)
        )
        figures = " | ".join(str(verdicts[how]) for how in VERDICTS)
        print(f"| {pair[0]}, {pair[1]} | {len(images)} | {figures} |", flush=True)


def judged(of_kind: str, result: Result) -> Sequence[str]:
    """The classes that are right for a kind; of dogs and birds all that ImageNet has."""
    ranges = JUDGED["ranges"].get(of_kind)
    if ranges is None:
        return JUDGED["kinds"][of_kind]
    labels = result.classes().labels
    return [labels[n] for first, last in ranges for n in range(first, last + 1)]


def called_by_pieces(result: Result) -> Iterator[str | None]:
    """What each image's object is called by the named factors."""
    names, maps = result.factor_names, result.heatmaps
    named = [factor for factor, name in enumerate(names) if name]
    for index, regions in enumerate(deepff.find_object(result).regions()):
        pieces = named_pieces(regions.masks[0].numpy(), maps.normalized(index), named)
        pixels = Counter(names[piece - 1] for piece in pieces[pieces > 0].tolist())
        yield pixels.most_common(1)[0][0] if pixels else None


def judge_objects(sets: Mapping[str, list[ImageFile]], backbone: Backbone) -> None:
    """Print what each set's object is called, and whether that is right."""
    print("| set | images | name | | likeliest | finding, s | naming, s |")
    print("|---|--:|---|---|---|--:|--:|")
    for key, files in sets.items():
        began = time.process_time()
        result = deepff.discover(files, model=backbone, recipe="contrast")
        found = time.process_time()
        classes = factor_classes(result)
        seconds = time.process_time() - found
        [name], [[(likeliest, share)]] = classes.names, classes.best(1)
        how = verdict(name, JUDGED["sets"][key])
        print(
            f"| {key} | {len(files)} | {name or '–'} | {how} | {likeliest} {share:.2f} "
            f"| {found - began:.1f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print what was asked for."""
    options = arguments()
    backbone = deepff.load_backbone()
    sets = all_sets(options.data)
    if options.only in (None, "sets"):
        judge_sets(sets, backbone, options.cache, options.look)
    if options.only in (None, "pairs"):
        judge_pairs(options.data, backbone, options.cache)
    if options.only in (None, "objects"):
        judge_objects({key: x for key, x in sets.items() if key.isdecimal()}, backbone)


if __name__ == "__main__":
    sys.exit(main())
