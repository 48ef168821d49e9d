"""Exports from the app: how many annotations there will be, one of them, and all of them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from deepff.app import page
from deepff.app.label_file import chosen_images, export_labelled, labelled_maps
from deepff.app.labels import ACCEPTED, SKIPPED
from deepff.app.pictures import picture_uri
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.export.formats import FORMATS
from deepff.export.instances import AnnotatedImage, Instance, annotated_images
from deepff.options import SUBSETS, ExportFormat, ExportOptions, Which, chosen, parsed_split
from deepff.runtime.outputs import output_folder, own_files

_LONGEST_LINE = 480
_LONGEST_FILE = 1600


@dataclass(frozen=True)
class Asked:
    """What is to be exported, as the fields of the page have it."""

    format: str
    which: str  # "" for the default
    instances: str
    min_area: int | None  # 0 or None for the default
    images: str = ""  # "" for what the format wants
    split: str = ""  # "" for the default

    @property
    def options(self) -> ExportOptions:
        """What an export takes of it; InputError where the split is not one."""
        split = parsed_split(self.split.strip()) if self.split.strip() else None
        min_area, images = self.min_area or None, self.images or None
        return ExportOptions(self.instances, min_area, images=images, split=split)


def measure(workspace: Workspace, asked: Asked) -> Iterator[tuple[str, str | None]]:
    """Count annotations image by image: yields the count, and a preview of one where it is new."""
    labels, result = workspace.store.labels, workspace.result
    n_specks = 0
    preview = None
    total = 0
    classes: list[str] = []
    lost: dict[str, str] = {}
    images: Counter[str] = Counter()  # by subset
    counts: Counter[tuple[str, str]] = Counter()  # instances, by class and subset

    def count(error: str | None = None) -> str:
        return page.render(
            "count.html",
            contents=chosen(ExportFormat, asked.format, "format").contents,
            instances=counts.total(),
            counts=counts,
            classes=classes,
            specks=n_specks,
            subsets={subset: images[subset] for subset in (*SUBSETS, "all") if images[subset]},
            images=images.total(),
            total=total,
            labels=labels,
            names=result.names,
            lost=lost,
            error=error,
        )

    try:
        which, file = asked.which or None, chosen(ExportFormat, asked.format, "format").file
        is_split = file in ("yolo", "voc") or (file == "coco" and asked.options.split is not None)
        images_chosen, lost = chosen_images(labels, result, which)
        total = len(images_chosen)
        yield count(), None
        maps = labelled_maps(result, labels, which)
        classes = maps.names
        for image in annotated_images(result, maps, asked.options):
            subset = image.subset if is_split else "all"
            images[subset] += 1
            n_specks += image.n_specks
            counts.update((classes[each.region], subset) for each in image.instances)
            if image.instances and preview is None:
                preview = _preview(workspace, maps.names, image, asked)
            yield count(), preview
    except InputError as error:
        yield count(page.sentence(error)), page.render("preview.html", name=None)
        return
    if preview is None:
        yield count(), page.render("preview.html", name=None)


def write(workspace: Workspace, asked: Asked) -> str:
    """Export, and say where the archive can be downloaded."""
    archive = archive_path(workspace.folder, asked.format)
    try:
        count = _write_archive(workspace, asked, archive)
    except (InputError, OSError) as error:
        return page.render("written.html", error=page.sentence(error), archive=None)
    kilobytes = -(-archive.stat().st_size // 1000)
    return page.render(
        "written.html", error=None, archive=archive, instances=count, kilobytes=kilobytes
    )


def _write_archive(workspace: Workspace, asked: Asked, archive: Path) -> int:
    """Replace ``export/FORMAT`` and its ZIP file, with photographs; the number of instances."""
    out = archive.with_suffix("")
    summary = export_labelled(
        workspace.result,
        workspace.store.labels,
        asked.format,
        out,
        replace(asked.options, anew=True),
        which=asked.which or None,
    )
    with output_folder(archive.parent) as temporary, ZipFile(temporary / archive.name, "w") as file:
        for name in own_files(out):
            file.write(out / name, name, ZIP_DEFLATED)
    return summary.n_instances


def archive_path(folder: Path, format: str) -> Path:
    """Where an export's ZIP file is in a result's folder."""
    return folder / "export" / f"{format}.zip"


def which_choices(workspace: Workspace) -> list[tuple[str, str]]:
    """The choices of images, in words with counts and as `Which`."""
    labels, names = workspace.store.labels, workspace.result.names
    accepted, skipped = labels.count(ACCEPTED, names), labels.count(SKIPPED, names)
    return [
        (f"accepted ({accepted})", Which.ACCEPTED),
        (f"all except skipped ({len(names) - skipped})", Which.NOT_SKIPPED),
        (f"all ({len(names)})", Which.ALL),
    ]


def _preview(workspace: Workspace, names: list[str], image: AnnotatedImage, asked: Asked) -> str:
    instance = max(image.instances, key=lambda instance: instance.area)
    name = names[instance.region]
    index = workspace.result.names.index(image.name)
    color = workspace.pictures.color_numbers(workspace.store.labels).get(name, instance.region)
    picture = picture_uri(workspace.pictures.instance(index, color, instance))
    files = _sample(image, instance, names, asked)
    return page.render("preview.html", name=name, image=image.name, picture=picture, files=files)


def _sample(
    image: AnnotatedImage, instance: Instance, names: Sequence[str], asked: Asked
) -> list[tuple[str, str]]:
    """The text files that a format writes for one instance, as (name, text), long ones cut."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        FORMATS[asked.format]([replace(image, instances=[instance])], names, root, asked.options)
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
