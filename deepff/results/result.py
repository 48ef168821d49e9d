"""A run's data with what a notebook does with it.

The verbs hand over to rooms further right, which know only :class:`deepff.results.run.Run`, and are
imported when called.
"""

from dataclasses import dataclass, field
from pathlib import Path

from deepff.results.run import Run


@dataclass(repr=False)
class Result(Run):
    """What :func:`deepff.discover` gives; :class:`deepff.results.run.Run` has its attributes."""

    object: "Result | None" = field(default=None, repr=False)

    def __repr__(self) -> str:
        errors = ", ".join(
            f"k={k}: {found.relative_error:.3f}" for k, found in self.factorizations.items()
        )
        return (
            f"<Result of {len(self.images)} images, {self.model} {self.layer}, "
            f"{self.method}, relative error {errors}>"
        )

    def save(self, folder: str | Path, progress: bool = False) -> None:
        """Write the run's files, its pictures and its report: :func:`deepff.report.save.save`."""
        from deepff.report.save import save

        save(self, folder, progress)

    def _repr_html_(self) -> str:
        from deepff.report.figures import figure_html

        return figure_html(self)
