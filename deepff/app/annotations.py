"""The export side of the app: how many annotations there will be, one of them, and all of them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from deepff.app.label_file import export_labelled
from deepff.app.labels import Labels
from deepff.export.formats import FORMATS
from deepff.export.instances import AnnotatedImage, Instance, LabelMaps, annotated_images
from deepff.options import ExportOptions
from deepff.results.result import Result
from deepff.runtime.outputs import output_folder, own_files

_LONGEST_LINE = 480
_LONGEST_FILE = 1600


def labelled_images(
    result: Result, maps: LabelMaps, instances: str, min_area: int | None
) -> Iterator[AnnotatedImage]:
    """Images with the instances that an export would write."""
    return annotated_images(result, maps, ExportOptions(instances, min_area))


def sample(
    image: AnnotatedImage, instance: Instance, names: Sequence[str], format: str
) -> list[tuple[str, str]]:
    """What a format makes of one instance of an image alone.

    Returns
    -------
    list of (name, text)
        The text files that the format writes, cut where they are long.
    """
    with TemporaryDirectory() as folder:
        root = Path(folder)
        shown = ExportOptions(images="none")
        FORMATS[format]([replace(image, instances=[instance])], names, root, shown)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return [
            (path.relative_to(root).as_posix(), _shortened(path.read_text("utf-8")))
            for path in files
            if path.suffix in (".json", ".xml", ".txt", ".yaml")
        ]


def _shortened(text: str) -> str:
    # A mask in a format may be thousands of characters or numbers, which show nothing.
    text = re.sub(r"([^\s]{60})[^\s]{20,}(?=\")", r"\1…", text)
    text = re.sub(r"((?:-?[\d.]+,?\s+){24})(?:-?[\d.]+,?\s*){8,}", r"\1… ", text)
    lines = [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
        for line in text.splitlines()
    ]
    text = "\n".join(lines)
    return text if len(text) <= _LONGEST_FILE else f"{text[:_LONGEST_FILE]}\n…"


def write_archive(
    result: Result,
    labels: Labels,
    folder: Path,
    format: str,
    options: ExportOptions,
    which: str | None,
) -> tuple[int, Path]:
    """Export into ``<folder>/export/<format>`` anew, and the same as a ZIP file beside it.

    Links to photographs are in the folder alone.

    Returns
    -------
    count : int
        The number of instances.
    archive : Path
        ``<folder>/export/<format>.zip``.
    """
    out = folder / "export" / format
    settings = replace(options, anew=True)
    count = export_labelled(result, labels, format, out, settings, which=which).n_instances
    archive = archive_path(folder, format)
    with output_folder(archive.parent) as temporary, ZipFile(temporary / archive.name, "w") as file:
        for name in own_files(out):
            if not (out / name).is_symlink():
                file.write(out / name, name, ZIP_DEFLATED)
    return count, archive


def archive_path(folder: Path, format: str) -> Path:
    """Where :func:`write_archive` leaves its ZIP file."""
    return folder / "export" / f"{format}.zip"
