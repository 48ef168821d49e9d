"""Table 3: parts of cows and horses from factors that a person names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deepff.errors import InputError
from deepff.evaluation.datasets.pascal import TABLE3_PARTS, load_pascal_part
from deepff.evaluation.metrics import Overlaps, iou
from deepff.evaluation.predictions import (
    DFF,
    DFF_CRF,
    GUIDED_CRF,
    Network,
    Variant,
    as_run,
    collect,
    count_masks,
    factor_coefficients,
    factor_finders,
    in_images,
    summed,
)
from deepff.evaluation.tables import Attempts, Scores, Table, score_table
from deepff.pictures.crops import save_jpeg
from deepff.pictures.figures import figure, spread
from deepff.regions.part_names import part_masks, read_parts
from deepff.regions.regions import Regions
from deepff.runtime.outputs import NO_OVERWRITE_OPTION, output_folder

N_FACTORS = 3
N_PICTURES = 5
# A mapping file's name is its class and the suffix of its method.
MAPPING_SUFFIXES = {DFF: "", "PCA": "-pca", "k-means": "-kmeans"}
_METHODS = (DFF, DFF_CRF, GUIDED_CRF, "PCA", "k-means")


def table3(
    network: Network,
    root: str | Path,
    *,
    mappings: Sequence[Path] = (),
    overlays: Path | None = None,
    classes: Sequence[str] = tuple(TABLE3_PARTS),
    crf: bool = True,
) -> Table:
    """IoU of head, neck + torso and legs on PASCAL-Part's cows and horses, k = 3. A person looks at
    pictures (written to ``overlays``) and writes which factor is which part, in ``cow.yaml``,
    ``cow-pca.yaml`` and so on. A part's mask is that of all factors with its name."""
    if not mappings and overlays is None:
        raise InputError(
            "table 3 needs to know which factor is which part: write the pictures with "
            "--write-overlays FOLDER, then give cow.yaml and horse.yaml with --mapping"
        )
    files = _mapping_files(mappings, classes)
    attempts = Attempts()
    scores = {
        name: attempts.run(name, _evaluate, network, root, name, files, overlays, crf)
        for name in classes
    }
    columns = {f"{name} {part}": (name, part) for name in classes for part in TABLE3_PARTS[name]}
    counts = [f"{name} {score.n_images}" for name, score in scores.items() if score is not None]
    notes = [
        "Set-wide IoU of a part with the masks of the factors that a person gave its name. A part "
        "without a factor scores 0; – means that the class has no mapping file",
        f"Images: {', '.join(counts)}",
    ]
    title = "Table 3: PASCAL-Part, cow and horse, k = 3 (IoU)"
    return score_table("table3", title, scores, columns, attempts, network.describe, notes)


def _mapping_files(mappings: Sequence[Path], classes: Sequence[str]) -> dict[str, Path]:
    """Mapping files by their stem, which names class and method."""
    known = [name + suffix for name in classes for suffix in MAPPING_SUFFIXES.values()]
    for path in mappings:
        if path.stem not in known:
            raise InputError(
                f"a mapping file is named by its class and method: {path.name} should be "
                f"{' or '.join(f'{stem}.yaml' for stem in known)}"
            )
    return {path.stem: path for path in mappings}


def _evaluate(
    network: Network,
    root: str | Path,
    class_name: str,
    files: Mapping[str, Path],
    overlays: Path | None,
    crf: bool,
) -> Scores:
    part_names = tuple(TABLE3_PARTS[class_name])
    mappings = {
        method: _read_mapping(files[class_name + suffix], part_names)
        for method, suffix in MAPPING_SUFFIXES.items()
        if class_name + suffix in files
    }
    (truth,) = load_pascal_part(root, {class_name: TABLE3_PARTS[class_name]})
    features = collect(truth, network)
    coefficients = factor_coefficients(features.activations, N_FACTORS, solver=features.solver)
    if overlays is not None:
        for variant, H in coefficients.items():
            stem = class_name + MAPPING_SUFFIXES[variant.method]
            picture = figure(as_run(features, H), spread(len(features), N_PICTURES))
            with output_folder(overlays, NO_OVERWRITE_OPTION) as folder:
                save_jpeg(picture, folder / f"{stem}.jpg")
    values: dict[str, dict[str, list[float | None]]]
    values = {method: {} for method in _METHODS if crf or method not in (DFF_CRF, GUIDED_CRF)}
    named = {variant: H for variant, H in coefficients.items() if variant.method in mappings}
    if named:
        mappings[DFF_CRF] = mappings[GUIDED_CRF] = mappings.get(DFF, {})

        def count(index: int, by_variant: Mapping[Variant, Regions]) -> dict[Variant, Overlaps]:
            of_parts = {
                variant: replace(
                    of, masks=part_masks(of.masks, mappings[variant.method], part_names)
                )
                for variant, of in by_variant.items()
            }
            return count_masks(truth, index, of_parts)

        finders = factor_finders(features, named, crf)
        for variant, overlaps in summed(in_images(features, finders, count)).items():
            # Mask i is of part i, whose label is i + 1.
            ious = iou(overlaps).diagonal(1).tolist()
            values[variant.method] = {
                part: [value] for part, value in zip(part_names, ious, strict=True)
            }
    return Scores(len(features), values)


def _read_mapping(path: Path, part_names: Sequence[str]) -> dict[int, str]:
    mapping = read_parts(path, N_FACTORS)
    for factor, name in mapping.items():
        if name not in part_names:
            raise InputError(
                f"{path} names factor {factor} “{name}”; the parts are: {', '.join(part_names)}"
            )
    return mapping
