"""What a notebook does with a run: a thin verb for each room to the right, imported when called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from deepff.options import (
    ExportOptions,
    ExportSettings,
    PictureStyle,
    RegionOptions,
    RegionSettings,
    region_options,
)
from deepff.results.run import Run

if TYPE_CHECKING:
    import pandas
    from PIL import Image
    from torch import Tensor

    from deepff.export.boxes import RegionBox
    from deepff.export.formats import ExportSummary
    from deepff.export.instances import Instance
    from deepff.meaning.attribution import Attribution, Faithfulness, Tcav
    from deepff.meaning.importance import Importance
    from deepff.meaning.similarity import Similarity
    from deepff.regions.regions import Regions
    from deepff.results.factorization import FactorClasses


@dataclass(repr=False)
class Result(Run):
    """What :func:`deepff.discover` returns.

    Attributes
    ----------
    images, skipped : list
        The images that were factorized, in order, and the files that were left out, and why.
    factorizations : dict of int to Factorization
        By number of factors.
    components, coefficients, heatmaps, relative_error
        Of the largest: W (k, c), H (rows, k), H as maps, and ‖A − HW‖ / ‖A‖.
    sources : tuple of FeatureSource
        Network, layer and preparation of the images; several where layers were fused.
    bank : ConceptBank
        The components of every factorization, with what applying them to other images needs.
    activations : Activations or None
        A; None where layers were fused, or where a loaded result has no cache.
    agreements : dict of int to float or None
        What k was chosen by, where it was chosen.
    object : Result or None
        The object in the same images, where the factors are its parts.
    parts_of : "object", "frame" or None
        Where the factors are parts: on the object's cells, or on all where objects fill the frame.
    separation : float or None
        How well the activations tell the inside of the images from their border, in [0, 1).
    importances : dict of int to Importance
        By k, what :meth:`importance` measured.
    unnamed : str or None
        Why the factors have no names.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> result = deepff.discover([data.chelsea(), data.astronaut()], n_components=2, size=224)
    >>> result.plot(images=[0], factors=[1]).size  # a picture
    (480, 446)
    >>> for regions in result.regions(threshold="otsu-image"):
    ...     print(regions.names, tuple(regions.masks.shape), tuple(regions.labels.shape))
    ('factor 0', 'factor 1') (2, 300, 451) (300, 451)
    ('factor 0', 'factor 1') (2, 512, 512) (512, 512)
    >>> [(box.image, box.region) for box in result.boxes(parts={1: "cat"})]
    [('0', 'cat')]
    >>> result.export("png", "masks", parts={1: "cat"}).n_instances
    1
    >>> result.save("result")
    """

    object: Result | None = field(default=None, repr=False)
    importances: dict[int, Importance] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        skipped = f" ({len(self.skipped)} skipped)" if self.skipped else ""
        return (
            f"<Result of {len(self.images)} images{skipped}, {self.model} {self.layer}, "
            f"{self.method}, relative error {self.relative_errors or 'unknown'}>"
        )

    def plot(
        self,
        images: int | Sequence[int] | None = None,
        k: int | None = None,
        factors: int | Sequence[int] | None = None,
        opacity: float = 0.8,
        height: int = 180,
        style: str = PictureStyle.STRONGEST,
    ) -> Image.Image:
        """Photos and heat maps as one picture: :func:`deepff.pictures.figures.figure`.

        The legend has the factors' names (:attr:`factor_names`).

        Parameters
        ----------
        images : int or sequence of int, optional
            Which images; by default up to 8, spread evenly over the set.
        k : int, optional
            Which factorization; by default all.
        factors : int or sequence of int, optional
            Which factors, a row each; by default all, together and one by one.
        opacity : float
            Of the heat maps, in [0, 1].
        height : int
            Of a row, in pixels.
        style : {"strongest", "mixed", "contours"}
            Each pixel in the color of its strongest factor; the colors mixed by strength; or lines
            around each factor.

        Raises
        ------
        InputError
            There is no such image, k or factor, or a number is out of its range.
        """
        from deepff.pictures.figures import figure

        return figure(self, images, k, factors, opacity, height, style)

    def tree_svg(self) -> str:
        """The tree over k as an ``<svg>``: which factor of the next smaller k each comes from."""
        from deepff.pictures.tree_drawing import tree_svg
        from deepff.results.factorization import tree

        return tree_svg(tree(self.factorizations), list(self.factorizations))

    def classes(self, k: int | None = None) -> FactorClasses:
        """The classes that the network sees in the factors of one factorization.

        Computed by :func:`deepff.meaning.class_names.factor_classes` if they are not known.
        """
        from deepff.meaning.class_names import factor_classes

        return self.factorization(k).classes or factor_classes(self, k)

    def class_scores(self, k: int | None = None) -> Tensor:
        """The network's logits for images that are full of each factor, (k, classes)."""
        return self.classes(k).scores

    @property
    def factor_names(self) -> list[str | None]:
        """The class that stands out in each factor of the largest factorization, or None.

        ``unnamed`` says why none is known. :meth:`names_of` has those of any k.
        """
        return self.names_of()

    def names_of(self, k: int | None = None) -> list[str | None]:
        """As ``factor_names``, of one factorization."""
        factorization = self.factorization(k)
        if factorization.classes is None:
            return [None] * len(factorization.components)
        return [*factorization.classes.names]

    def name_factors(self, progress: bool = False) -> list[str | None]:
        """Name the factors of every factorization by the network's classes, and keep the names.

        :func:`deepff.discover` and :func:`deepff.apply` do this last. Where it cannot be done,
        ``unnamed`` says why. The network is opened where it is not open.
        Returns :attr:`factor_names`.
        """
        from deepff.meaning.class_names import name_factors

        names = name_factors(self, progress)
        self.factorizations = {
            k: replace(factorization, classes=names.classes.get(k))
            for k, factorization in self.factorizations.items()
        }
        self.unnamed = names.unnamed
        return self.factor_names

    def importance(
        self,
        k: int | None = None,
        classes: Sequence[str | int] | None = None,
        n_images: int = 32,
        progress: bool = False,
    ) -> Importance:
        """How much the factors matter to the network's classes; the result keeps it for its report.

        Parameters and errors are those of :func:`deepff.meaning.importance.importance`.
        """
        from deepff.meaning.importance import importance

        measured = importance(self, k, classes, n_images, progress)
        self.importances[len(measured.names)] = measured
        return measured

    def attribution(
        self, image: int | str, class_name: str | int | None = None, k: int | None = None
    ) -> Attribution:
        """Where in an image factors matter for a class: :mod:`deepff.meaning.attribution`.

        By default for the network's first choice for the image.
        """
        from deepff.meaning.attribution import attribution

        return attribution(self, image, class_name, k)

    def faithfulness(
        self, class_name: str | int | None = None, k: int | None = None, n_images: int = 32
    ) -> Faithfulness:
        """Deletion and insertion curves of the factors: :mod:`deepff.meaning.attribution`.

        Scores are means over the images whose first choice the class is; by default the main class.
        """
        from deepff.meaning.attribution import faithfulness

        return faithfulness(self, class_name, k, n_images)

    def tcav(
        self,
        direction: int | Sequence[float] | Tensor,
        class_name: str | int,
        k: int | None = None,
        n_images: int = 32,
    ) -> Tcav:
        """TCAV's score (Kim et al. 2018): the share of a class's images where its score rises.

        The direction is a factor's number, or a vector of one number per channel of the layer.
        """
        from deepff.meaning.attribution import tcav

        return tcav(self, direction, class_name, k, n_images)

    def similar(
        self,
        image: int | str,
        place: tuple[float, float],
        by: str = "activations",
        k: int | None = None,
        progress: bool = False,
    ) -> Similarity:
        """Find regions similar to one spot in an image: :func:`deepff.meaning.similarity.similar`.

        ``place`` is the spot, (x, y) in pixels of the image. Activations that have to be computed
        stay in the result.
        """
        from deepff.meaning.similarity import similar

        similarity = similar(self, image, place, by, k, progress)
        self.activations = similarity.run.activations
        return similarity

    def regions(
        self, k: int | None = None, **settings: Unpack[RegionSettings]
    ) -> Iterator[Regions]:
        """Masks and label maps, image by image: :func:`deepff.regions.regions.find_regions`.

        Parameters
        ----------
        k : int, optional
            Which factorization; by default the largest.
        **settings
            ``threshold``, ``value``, ``refine`` and ``parts`` of
            :class:`deepff.options.RegionOptions`; by default those of the result's recipe.

        Yields
        ------
        Regions
            ``masks`` (r, H, W) bool, ``labels`` (H, W) and ``names`` of an image, in order.

        Raises
        ------
        InputError
            As :func:`deepff.regions.regions.find_regions`.
        """
        from deepff.regions.regions import find_regions

        return find_regions(self, k, self._region_options(k, settings))

    def scores(self) -> Tensor:
        """How likely each image shows each kind of object, by its best piece: (n, k) in [0, 1].

        InputError if the factors are not objects from the recipe contrast.
        """
        from deepff.regions.regions import image_scores

        return image_scores(self)

    def boxes(
        self,
        k: int | None = None,
        *,
        best: bool = False,
        min_area: int | None = None,
        **settings: Unpack[RegionSettings],
    ) -> list[RegionBox]:
        """Boxes around the regions of all images: :func:`deepff.export.boxes.region_boxes`.

        Parameters
        ----------
        k : int, optional
            Which factorization; by default the largest.
        best, min_area
            See :func:`deepff.export.boxes.region_boxes`.
        **settings
            As for :meth:`regions`.
        """
        from deepff.export.boxes import region_boxes
        from deepff.regions.regions import find_regions

        options = self._region_options(k, settings)
        return [
            box
            for name, regions in zip(self.names, find_regions(self, k, options), strict=True)
            for box in region_boxes(regions, name, regions.names, best, min_area)
        ]

    def instances(
        self,
        k: int | None = None,
        *,
        min_area: int | None = None,
        **settings: Unpack[RegionSettings],
    ) -> Iterator[list[Instance]]:
        """The instances of each image in turn: :class:`deepff.export.instances.Instance`.

        Each has the ``name`` of its region, a ``box`` and a ``mask`` inside the box. Objects from
        the recipe contrast also have a ``score``: how likely the name is right.

        Parameters
        ----------
        k, **settings
            As for :meth:`regions`.
        min_area : int, optional
            In pixels; what is smaller is left out, by default specks.
        """
        from deepff.export.instances import region_instances

        every = self.regions(k, **settings)
        return (region_instances(regions, min_area) for regions in every)

    def to_dataframe(
        self, k: int | None = None, **settings: Unpack[RegionSettings]
    ) -> pandas.DataFrame:
        """A table with one row per image and region, by default per image and factor.

        Its columns are ``image`` and ``region``, their names; ``strength``, the largest value of
        the region's heat maps in the image, as a share of their largest over the set, in [0, 1];
        ``share``, the share of the image's pixels that the region's mask holds; and ``x_min``,
        ``y_min``, ``x_max``, ``y_max``, the box around the largest component in pixel edges,
        missing where there is none.

        Parameters
        ----------
        k, **settings
            As for :meth:`regions`.

        Raises
        ------
        InputError
            As :meth:`regions`, or pandas is not installed.
        """
        from deepff.export.boxes import region_table

        every, heatmaps = self.regions(k, **settings), self.factorization(k).heatmaps
        return region_table(self.names, every, heatmaps, settings.get("parts"))

    def export(
        self,
        formats: str | Sequence[str],
        folder: str | Path,
        k: int | None = None,
        **settings: Unpack[ExportSettings],
    ) -> ExportSummary:
        """Write the regions for labeling tools or training programs.

        Parameters
        ----------
        formats : str or sequence of str
            Of :class:`deepff.options.ExportFormat`.
        folder : path
            Where to write; several formats get a folder each in it, with the format's name.
        k : int, optional
            Which factorization; by default the largest.
        **settings
            As for :meth:`regions`, and the fields of :class:`deepff.options.ExportOptions`:
            ``min_area=50``, ``images="copy"``.
        """
        from deepff.export.formats import export

        rest: dict[str, Any] = dict(settings)
        region_names = RegionSettings.__annotations__.keys() & rest.keys()
        of_regions: Any = {name: rest.pop(name) for name in region_names}
        options = self._region_options(k, of_regions)
        return export(self, formats, folder, k, options, ExportOptions(**rest))

    def save(
        self,
        folder: str | Path,
        progress: bool = False,
        overlays: bool = False,
        overwrite: bool = False,
        report: bool = True,
    ) -> None:
        """Write the run's files, its pictures and its report: :func:`deepff.report.save.save`.

        Masks and other files made from the result in the folder stay if it is this result. If it is
        another, this raises InputError, or with ``overwrite`` removes them.
        """
        from deepff.report.save import save

        save(self, folder, progress, overlays, overwrite, report)

    def _region_options(self, k: int | None, settings: RegionSettings) -> RegionOptions:
        from deepff.regions.regions import check_classifier

        check_classifier(settings.get("refine"), self.factorization(k))
        return region_options(self.recipe, **settings)

    def _repr_html_(self) -> str:
        from deepff.images.painting import image_html

        return image_html(self.plot(), "Heat maps")


class ClassResults(dict[Any, Result]):
    """A result for each class of images, as ``deepff.discover(images, classes=labels)`` gives.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.astronaut(), data.chelsea()[:, ::-1].copy()]
    >>> results = deepff.discover(images, 2, classes=["cat", "man", "cat"], size=224)
    >>> {label: result.names for label, result in results.items()}
    {'cat': ['0', '2'], 'man': ['1']}
    """

    def save(self, folder: str | Path, *options: bool, **named: bool) -> dict[Any, Path]:
        """Write a folder for each class and ``classes.html``, which shows all; the folders.

        Options are those of :meth:`Result.save`; :func:`deepff.load` opens the folder again.
        """
        from deepff.report.save import save_classes

        return save_classes(self, folder, *options, **named)

    def importance(self, k: int | None = None, **options: Any) -> dict[Any, Importance]:
        """Each class's :meth:`Result.importance`, which the results keep for their reports.

        It is for the network's class of this name, or else for those that it predicts most often.
        """
        return {
            x: each.importance(k, [x] if x in each.classes(k).labels else None, **options)
            for x, each in self.items()
        }

    def _repr_html_(self) -> str:
        each = ((escape(str(label)), result._repr_html_()) for label, result in self.items())
        return "".join(f"<h3>{label}</h3>{picture}" for label, picture in each)
