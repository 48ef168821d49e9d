"""What a run gives: maps, components and how they came about; saved to and loaded from a folder."""

import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from deepff.activation_cache import ActivationCache
from deepff.activations import Activations, ImageRecord
from deepff.concepts import FILE as BANK
from deepff.concepts import ConceptBank, load_concepts
from deepff.errors import InputError
from deepff.feature_source import FeatureSource
from deepff.files import atomic_path
from deepff.heatmaps import HeatMaps
from deepff.images import SkippedFile
from deepff.levels import Levels

SHARD_BYTES = 64 * 2**20
OBJECT = "object"
OUTPUTS = (
    "boxes",
    "export",
    "masks",
    OBJECT,
    "regions",
    "report.html",
    "figure.png",
    BANK,
    "heatmaps",
    "overlays",
    "thumbnails",
)


@dataclass(frozen=True)
class Factorization:
    """A ≈ H W for one number of factors.

    Attributes
    ----------
    components : Tensor, shape (k, c)
        W.
    heatmaps : HeatMaps
        The columns of H as maps.
    relative_error : float
        ‖A − HW‖ / ‖A‖, Frobenius.
    n_iter : int
        Iterations that the solver took.
    """

    components: Tensor
    heatmaps: HeatMaps
    relative_error: float
    n_iter: int

    @property
    def coefficients(self) -> Tensor:
        """H, shape (rows, k)."""
        return self.heatmaps.coefficients

    @property
    def energy_shares(self) -> Tensor:
        """Each factor's share of the energy, ‖hⱼ‖·‖wⱼ‖ over the sum of all: (k,), sum 1."""
        energies = self.coefficients.norm(dim=0) * self.components.norm(dim=1)
        return energies / energies.sum().clamp_min(torch.finfo(energies.dtype).tiny)


@dataclass(repr=False)
class Result:
    """The outcome of :func:`deepff.discover`.

    Attributes
    ----------
    images : list of ImageRecord
        The images that were factorised together, in order.
    skipped : list of SkippedFile
        The files that were passed over, and why.
    factorizations : dict of int to Factorization
        By number of factors, ascending. ``components``, ``coefficients``, ``relative_error`` and
        ``heatmaps`` of the result itself are those of the largest.
    method : str
        "nmf", "pca" or "kmeans".
    sources : tuple of FeatureSource
        Network, layer and preparation of the images; several where layers were fused.
    options : dict
        The method's options, ``random_state`` among them.
    command : str
        What was run.
    seconds : dict of str to float
        Time spent, by stage.
    created : str
        When the run ended, ISO 8601, UTC.
    cache : str or None
        The folder of the activation cache, if one was used.
    agreements : dict of int to float or None
        What k was chosen by, where it was chosen (:func:`deepff.selection.select_k`).
    channel_weights : Tensor, (c,), or None
        What the channels of A were multiplied with before it was factorised.
    recipe : str
        "paper" or "contrast": how masks are made from the maps unless told otherwise.
    separation : float or None
        Where channels were weighted by it, how far the activations tell the inside of the images
        from their border (:class:`deepff.foreground.BorderContrast`), of the coarsest layer.
    object : Result or None
        The object in the same images, found by the recipe "contrast".
    parts_of : "object", "frame" or None
        Whether the factors are parts of the object (:mod:`deepff.object_parts`), and where: on its
        cells, or on all where objects fill the frame.
    bank : ConceptBank or None
        The bank that was applied, where the components were found in another set.
    activations : Activations or None
        A; None where layers were fused. After :func:`load` only where the cache still holds it.
    """

    images: list[ImageRecord]
    skipped: list[SkippedFile]
    factorizations: dict[int, Factorization]
    method: str
    sources: tuple[FeatureSource, ...]
    options: dict[str, Any]
    command: str
    seconds: dict[str, float]
    cache: str | None = None
    agreements: dict[int, float] | None = None
    channel_weights: Tensor | None = field(default=None, repr=False)
    recipe: str = "paper"
    separation: float | None = None
    object: "Result | None" = field(default=None, repr=False)
    parts_of: str | None = None
    bank: ConceptBank | None = field(default=None, repr=False)
    activations: Activations | None = field(default=None, repr=False)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def __repr__(self) -> str:
        errors = ", ".join(
            f"k={k}: {found.relative_error:.3f}" for k, found in self.factorizations.items()
        )
        return (
            f"<Result of {len(self.images)} images, {self.model} {self.layer}, "
            f"{self.method}, relative error {errors}>"
        )

    @property
    def model(self) -> str:
        """The network's name."""
        return self.sources[0].model

    @property
    def layer(self) -> str:
        """The layer's module path; those of fused layers with + between."""
        return " + ".join(source.layer for source in self.sources)

    @property
    def names(self) -> list[str]:
        """The images' names."""
        return [image.name for image in self.images]

    @property
    def paths(self) -> list[Path]:
        """The files that the images were read from."""
        return [image.path for image in self.images]

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """(H, W) of each image in pixels."""
        return [image.size for image in self.images]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """(h, w) of the layer's grid on each image."""
        return [image.grid for image in self.images]

    @property
    def n_components(self) -> int:
        """The largest number of factors."""
        return max(self.factorizations)

    @property
    def components(self) -> Tensor:
        """W of the largest factorization: (k, c)."""
        return self.factorizations[self.n_components].components

    @property
    def coefficients(self) -> Tensor:
        """H of the largest factorization: (rows, k)."""
        return self.factorizations[self.n_components].coefficients

    @property
    def heatmaps(self) -> HeatMaps:
        """The heat maps of the largest factorization."""
        return self.factorizations[self.n_components].heatmaps

    @property
    def relative_error(self) -> float:
        """‖A − HW‖ / ‖A‖ of the largest factorization."""
        return self.factorizations[self.n_components].relative_error

    @property
    def concepts(self) -> ConceptBank:
        """The components of every factorization, with what applying them elsewhere takes."""
        if self.bank is not None:
            return self.bank
        return ConceptBank(
            components={k: found.components for k, found in self.factorizations.items()},
            levels={k: Levels.sampled(f.heatmaps) for k, f in self.factorizations.items()},
            method=self.method,
            sources=self.sources,
            channel_weights=self.channel_weights,
            recipe=self.recipe,
            parts_of=self.parts_of,
        )

    def save(self, folder: str | Path, progress: bool = False) -> None:
        """Write the run's files, its pictures and its report.

        A result that the folder held before is replaced.

        Raises
        ------
        InputError
            If the folder holds something else, or cannot be written.
        """
        from deepff.viz.report import write_report

        folder = check_output_folder(folder)
        _write_json(folder / "manifest.json", {"deepff": version("deepff"), "status": "writing"})
        for name in OUTPUTS:
            _remove(folder / name)
        if self.object is not None:
            self.object.save(folder / OBJECT, progress)
        self.concepts.save(folder / BANK)
        self._save_heatmaps(folder / "heatmaps")
        write_report(self, folder, progress=progress)
        _write_json(folder / "manifest.json", self._manifest())

    def _save_heatmaps(self, folder: Path) -> None:
        for number, rows in enumerate(self._shards()):
            coefficients = {
                f"k{k}": found.coefficients[rows].cpu().contiguous()
                for k, found in self.factorizations.items()
            }
            with atomic_path(folder / f"{number:05d}.safetensors") as temporary:
                save_file(coefficients, temporary)

    def _shards(self) -> Iterator[slice]:
        """The rows of each shard: whole images, about SHARD_BYTES of coefficients."""
        row_bytes = 4 * sum(self.factorizations)
        first = last = 0
        for image in self.images:
            if last > first and (last - first + image.n_cells) * row_bytes > SHARD_BYTES:
                yield slice(first, last)
                first = last
            last += image.n_cells
        yield slice(first, last)

    def _manifest(self) -> dict[str, Any]:
        packages = ("deepff", "torch", "torchvision", "timm")
        return {
            "deepff": version("deepff"),
            "status": "complete",
            "created": self.created,
            "command": self.command,
            "versions": {
                "python": platform.python_version(),
                **{package: version(package) for package in packages},
            },
            "method": self.method,
            "options": self.options,
            "sources": [asdict(source) for source in self.sources],
            "recipe": self.recipe,
            "separation": self.separation,
            "parts_of": self.parts_of,
            "applied": self.bank is not None,
            "cache": self.cache,
            "agreements": self.agreements,
            "factorizations": {
                str(k): {"relative_error": found.relative_error, "n_iter": found.n_iter}
                for k, found in self.factorizations.items()
            },
            "images": [_image_entry(image) for image in self.images]
            + [{**asdict(skipped), "status": "skipped"} for skipped in self.skipped],
            "seconds": {stage: round(seconds, 4) for stage, seconds in self.seconds.items()},
        }

    def _repr_html_(self) -> str:
        from deepff.viz.figure import figure_html

        return figure_html(self)


def load(folder: str | Path) -> Result:
    """Load the result that a run left in ``folder``.

    Raises
    ------
    InputError
        If the folder holds no result, or one that was not finished.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no deepff result (it has no manifest.json of one)")
    if manifest["status"] != "complete":
        raise InputError(f"the run in {folder} was not finished; run its command again")
    images = [_image_record(entry) for entry in manifest["images"] if entry["status"] == "used"]
    bank = load_concepts(folder / BANK)
    shards = [load_file(path) for path in sorted((folder / "heatmaps").glob("*.safetensors"))]
    factorizations = {}
    for k, components in bank.components.items():
        coefficients = torch.cat([shard[f"k{k}"] for shard in shards])
        facts = manifest["factorizations"][str(k)]
        scale = bank.levels[k].high if manifest["applied"] else None
        heatmaps = HeatMaps.of_images(coefficients, images, scale)
        factorizations[k] = Factorization(components, heatmaps, **facts)
    return Result(
        images=images,
        skipped=[
            SkippedFile(entry["name"], entry["reason"])
            for entry in manifest["images"]
            if entry["status"] == "skipped"
        ],
        factorizations=factorizations,
        method=manifest["method"],
        sources=bank.sources,
        options=manifest["options"],
        command=manifest["command"],
        seconds=manifest["seconds"],
        cache=manifest["cache"],
        agreements=_agreements(manifest),
        channel_weights=bank.channel_weights,
        recipe=manifest["recipe"],
        separation=manifest["separation"],
        object=_load_object(folder / OBJECT),
        parts_of=manifest["parts_of"],
        bank=bank if manifest["applied"] else None,
        activations=_cached_activations(manifest["cache"], bank.sources, images),
        created=manifest["created"],
    )


def check_output_folder(folder: str | Path) -> Path:
    """The folder as a path, made where it was missing, if a result may be written there.

    Raises
    ------
    InputError
        If it is a file, may not be written, or holds files but no deepff result: those would be
        mixed up or lost.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the result")
    if folder.is_dir() and any(folder.iterdir()) and _read_manifest(folder) is None:
        raise InputError(
            f"{folder} is not empty and holds no deepff result; name a new or empty folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}); name a folder where you may write"
        ) from error
    return folder


def _load_object(folder: Path) -> Result | None:
    manifest = _read_manifest(folder)
    return load(folder) if manifest is not None and manifest["status"] == "complete" else None


def _cached_activations(
    cache: str | None, sources: tuple[FeatureSource, ...], images: list[ImageRecord]
) -> Activations | None:
    if cache is None or not Path(cache).is_dir() or len(sources) > 1:
        return None
    store = ActivationCache(cache, sources[0])
    store.reserve(images)
    return Activations(images, store.blocks(images)) if all(map(store.holds, images)) else None


def _agreements(manifest: dict[str, Any]) -> dict[int, float] | None:
    agreements = manifest.get("agreements")
    return None if agreements is None else {int(k): value for k, value in agreements.items()}


def _image_entry(image: ImageRecord) -> dict[str, Any]:
    return {**asdict(image), "path": os.path.abspath(image.path), "status": "used"}


def _image_record(entry: dict[str, Any]) -> ImageRecord:
    return ImageRecord(
        name=entry["name"],
        path=Path(entry["path"]),
        size=tuple(entry["size"]),
        grid=tuple(entry["grid"]),
        digest=entry["digest"],
    )


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "deepff" in manifest else None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
