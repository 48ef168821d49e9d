"""Pictures of a result's regions, which its report shows."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from deepff.regions.components import Box
from deepff.report.figures import read_photo
from deepff.report.jpeg import save_jpeg
from deepff.report.region_pictures import region_picture
from deepff.results.run import Run
from deepff.runtime.files import atomic_path
from deepff.runtime.outputs import Rules, output_folder

GALLERIES = "regions"


class RegionGallery(AbstractContextManager["RegionGallery"]):
    """Pictures of regions for the report: ``regions/<name>/NNNNN.jpg`` and ``<name>.json``.

    A context, after which the next report shows the gallery; if it fails, the one before.

    Parameters
    ----------
    folder : path
        The folder of the result.
    name : str
        Of the gallery; one of the same name is replaced.
    description : str
        How the regions were found, for people.
    regions : sequence of str
        The regions' names.
    n_panels : int
        Pictures side by side for each image.
    places : sequence of int, optional
        Of the regions' colours in the palette; by default in order.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        description: str,
        regions: Sequence[str],
        n_panels: int = 1,
        places: Sequence[int] | None = None,
    ) -> None:
        self._name = name
        self._content: dict[str, Any] = {
            "title": name,
            "description": description,
            "regions": list(regions),
            "n_panels": n_panels,
            "places": list(range(len(regions)) if places is None else places),
        }
        # These pictures are deepff's own, as the report is: nobody is asked to keep others.
        self._output = output_folder(Path(folder) / GALLERIES, Rules(overwrite=True))

    def __enter__(self) -> Self:
        self._folder = self._output.__enter__()
        return self

    def add(
        self,
        result: Run,
        index: int,
        panels: Sequence[np.ndarray],
        boxes: Sequence[tuple[int, Box]] = (),
    ) -> None:
        """Draw one image's regions, a label map a panel; see `deepff.report.region_pictures`."""
        photo, _ = read_photo(result.images[index])
        places = self._content["places"]
        numbers = np.array([0, *(place + 1 for place in places)], panels[0].dtype)
        own = [(places[region], box) for region, box in boxes]
        pictures = [region_picture(photo, numbers[labels], own) for labels in panels]
        picture = np.concatenate(pictures, axis=1)
        save_jpeg(Image.fromarray(picture), self._folder / self._name / f"{index:05d}.jpg")

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            with atomic_path(self._folder / f"{self._name}.json") as path:
                path.write_text(json.dumps(self._content))
        self._output.__exit__(*error)


def gallery_settings(folder: str | Path, name: str) -> tuple[str, str] | None:
    """How the regions of a gallery were found, and their names, for people; None without one."""
    for gallery in galleries(Path(folder)):
        if gallery["title"] == name:
            return gallery["description"], f"regions: {', '.join(gallery['regions'])}"
    return None


def galleries(folder: Path) -> list[dict[str, Any]]:
    """What the galleries in a folder hold, in the order of their names, and where they are."""
    return [
        {
            "n_panels": 1,
            "places": list(range(len(held["regions"]))),
            **held,
            "folder": f"{GALLERIES}/{path.stem}",
        }
        for path in sorted((folder / GALLERIES).glob("*.json"))
        for held in [json.loads(path.read_text())]
    ]
