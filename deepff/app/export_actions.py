"""What the page's export does: count, show one annotation, write."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepff.app import page
from deepff.app.annotations import labelled_images, sample, write_archive
from deepff.app.labels import ACCEPTED, SKIPPED
from deepff.app.masks import chosen_images, labelled_maps
from deepff.app.pictures import data_uris
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.export.formats import CONTENTS
from deepff.export.instances import AnnotatedImage
from deepff.options import SPLIT, ExportOptions, Photographs, Which, parsed_split


@dataclass(frozen=True)
class Asked:
    """What is to be exported.

    Attributes
    ----------
    format : ExportFormat
    which : Which or "" for what is the default
    instances : Instances
    min_area : int, optional
    images : Photographs
        See :class:`deepff.options.ExportOptions`.
    split : str
        As :func:`deepff.options.parsed_split` takes it, "" for the default.
    """

    format: str
    which: str
    instances: str
    min_area: int | None
    images: str = Photographs.NONE
    split: str = ""

    @property
    def options(self) -> ExportOptions:
        """What an export takes of it."""
        split = parsed_split(self.split.strip()) if self.split.strip() else SPLIT
        return ExportOptions(self.instances, self.min_area, images=self.images, split=split)


def measure(workspace: Workspace, asked: Asked) -> Iterator[tuple[str, str | None]]:
    """Count annotations image by image.

    Yields
    ------
    count : str
    preview : str or None
        One annotation; None: it stays as it is.
    """
    labels, result = workspace.store.labels, workspace.result
    n_images = n_instances = 0
    preview = None
    total = 0

    def count(error: str | None = None) -> str:
        return page.render(
            "count.html",
            contents=CONTENTS[asked.format],
            singular={"masks": "mask", "boxes": "box"},
            instances=n_instances,
            images=n_images,
            total=total,
            of=len(result.names),
            accepted=labels.count(ACCEPTED, result.names),
            skipped=labels.count(SKIPPED, result.names),
            error=error,
        )

    try:
        which = asked.which or None
        total = len(chosen_images(labels, result.names, which))
        yield count(), None
        maps = labelled_maps(result, labels, which)
        for image in labelled_images(result, maps, asked.instances, asked.min_area):
            n_images += 1
            n_instances += len(image.instances)
            if image.instances and preview is None:
                preview = _preview(workspace, maps.names, image, asked.format)
            yield count(), preview
    except InputError as error:
        yield count(page.sentence(error)), preview
    if preview is None:
        yield count(), page.render("preview.html", name=None)


def write(workspace: Workspace, asked: Asked) -> str:
    """Export, and say where it can be downloaded."""
    try:
        count, archive = write_archive(
            workspace.result,
            workspace.store.labels,
            workspace.folder,
            asked.format,
            asked.options,
            asked.which or None,
        )
    except (InputError, OSError) as error:
        return page.render("written.html", error=page.sentence(error), archive=None)
    return page.render("written.html", error=None, archive=_about(archive), instances=count)


def which_choices(workspace: Workspace) -> list[tuple[str, str]]:
    """The ways to choose images, in words with counts, and what they are."""
    labels, names = workspace.store.labels, workspace.result.names
    accepted, skipped = labels.count(ACCEPTED, names), labels.count(SKIPPED, names)
    return [
        (f"accepted ({accepted})", Which.ACCEPTED),
        (f"all but skipped ({len(names) - skipped})", Which.NOT_SKIPPED),
        (f"all ({len(names)})", Which.ALL),
    ]


def _about(archive: Path) -> dict[str, Any]:
    return {
        "name": archive.name,
        "kilobytes": -(-archive.stat().st_size // 1000),
        "folder": archive.with_suffix(""),
    }


def _preview(workspace: Workspace, names: list[str], image: AnnotatedImage, format: str) -> str:
    instance = max(image.instances, key=lambda instance: instance.area)
    name = names[instance.region]
    index = workspace.result.names.index(image.name)
    color = workspace.pictures.color_numbers(workspace.store.labels).get(name, instance.region)
    [uri] = data_uris(lambda i: workspace.pictures.instance(i, color, instance), [index])
    files = sample(image, instance, names, format)
    return page.render("preview.html", name=name, image=image.name, picture=uri, files=files)
