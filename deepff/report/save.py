"""A run written into its folder."""

import math
from collections.abc import Iterator
from pathlib import Path

from deepff.errors import InputError
from deepff.report.manifest import MANIFEST, probabilities_of, read_manifest, write_manifest
from deepff.report.report import write_report, write_report_page
from deepff.result import Result
from deepff.results.concept_bank import FILE as BANK
from deepff.runtime.files import check_writable, save_tensors
from deepff.runtime.outputs import RECORD, Rules, changed_files, output_folder

SHARD_BYTES = 64 * 2**20
OBJECT = "object"
MADE_OF_IT = ("boxes", "export", "masks")
OUTPUTS = (
    *MADE_OF_IT,
    OBJECT,
    MANIFEST,
    "regions",
    "report.html",
    "figure.png",
    BANK,
    "heatmaps",
    "overlays",
    "crops",
    "thumbnails",
)


def save(run: Result, folder: str | Path, progress: bool = False, overlays: bool = False) -> None:
    """Write the run's files, its pictures and its report.

    When all is written it replaces an earlier result, with what was made of it (`earlier_outputs`);
    users' files stay. `overlays` take most of a result's space, and the report does not need them.
    """
    folder = check_output_folder(folder)
    rules = Rules(remove_stale=True, inputs=run.paths, adopted=OUTPUTS)
    with output_folder(folder, rules, seal=MANIFEST) as new:
        _write(run, new, progress, overlays)


def rewrite(
    run: Result, folder: str | Path, progress: bool = False, overlays: bool = False
) -> None:
    """Write again what is known of a saved run's factors: its bank, manifest, pictures and report.

    Its heat maps stay, and everything that was made of it.
    """
    folder = check_output_folder(folder)
    with output_folder(folder, Rules(inputs=run.paths, adopted=OUTPUTS), seal=MANIFEST) as new:
        run.bank.save(new / BANK)
        write_report(run, new, progress=progress, overlays=overlays)
        write_manifest(run, new)
    write_report_page(run, folder)  # it shows the galleries in the folder


def _write(run: Result, folder: Path, progress: bool, overlays: bool) -> None:
    if run.object is not None:
        _write(run.object, folder / OBJECT, progress, overlays)
    run.bank.save(folder / BANK)
    _save_heatmaps(run, folder / "heatmaps")
    write_report(run, folder, progress=progress, overlays=overlays)
    write_manifest(run, folder)


def _save_heatmaps(run: Result, folder: Path) -> None:
    for number, images in enumerate(_shards(run)):
        coefficients = {}
        for k, factorization in run.factorizations.items():
            coefficients[f"k{k}"] = factorization.heatmaps.rows(images).cpu().contiguous()
            if factorization.probabilities is not None:
                # A copy: where H is the classifier's it is the same tensor.
                rows = factorization.probabilities.rows(images).cpu().clone().contiguous()
                coefficients[f"k{k}.classified"] = rows
        save_tensors(coefficients, folder / f"{number:05d}.safetensors")


def _shards(run: Result) -> Iterator[slice]:
    """The images of each shard: about SHARD_BYTES of coefficients."""
    classified = probabilities_of(run)
    total = first = 0
    for index, image in enumerate(run.images):
        n_cells = image.n_cells + (0 if classified is None else math.prod(classified.grids[index]))
        n_bytes = 4 * sum(run.factorizations) * n_cells
        if total and total + n_bytes > SHARD_BYTES:
            yield slice(first, index)
            first, total = index, 0
        total += n_bytes
    yield slice(first, len(run.images))


def check_output_folder(folder: str | Path) -> Path:
    """The folder as a path, created if missing. InputError if a result must not be written there.

    That is if it is a file, cannot be written, holds files but no deepff result, or a result with
    files that were changed since, which would be mixed up or lost.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the result")
    holds_result = read_manifest(folder) is not None or (folder / RECORD).exists()
    if folder.is_dir() and any(folder.iterdir()) and not holds_result:
        raise InputError(
            f"{folder} is not empty and holds no deepff result; name a new or empty folder"
        )
    for name in changed_files(folder):
        if name.partition("/")[0] not in MADE_OF_IT:
            raise InputError(
                f"{folder / name} was changed since deepff wrote it, and a new result would "
                "replace it: move it away, or name another folder"
            )
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def earlier_outputs(folder: str | Path) -> list[str]:
    """What was made of a folder's result and is removed when it is replaced, such as "masks/k3".

    Files in it that were changed since stay.
    """
    folder = Path(folder)
    return [
        path.relative_to(folder).as_posix()
        for name in MADE_OF_IT
        for path in sorted((folder / name).glob("[!.]*"))
    ]
