"""Where else a patch is, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Similarity:
    """How like one place every place of the set is.

    Attributes
    ----------
    image : int
        The image of the place.
    place : (x, y)
        In pixels of that image.
    heatmaps : HeatMaps
        One map an image: the cosine of each cell with the place's, in [-1, 1].
    strongest : tuple of int
        The images in the order of their largest values, the image itself among them.
    """

    image: int
    place: tuple[float, float]
    heatmaps: HeatMaps
    strongest: tuple[int, ...]
    run: Run = field(repr=False)

    def plot(self, n: int = 8, height: int = 180) -> Image.Image:
        """The place and the ``n`` images where it is strongest, with their maps, as one picture."""
        from deepff.report.figures import similar_figure

        return similar_figure(
            self.run, self.image, self.place, self.heatmaps, self.strongest[:n], height
        )

    def _repr_html_(self) -> str:
        from deepff.report.map_pictures import image_html

        return image_html(self.plot(), "Similar places")
