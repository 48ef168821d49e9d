"""What commands say, on standard output and standard error."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepff.options import METHODS_IN_WORDS, MIN_SCORE

if TYPE_CHECKING:
    from deepff.meaning.importance import Importance
    from deepff.result import Result
    from deepff.results.factorization import Factorization


def warn(message: str) -> None:
    typer.echo(f"deepff: {message}", err=True)


@contextmanager
def user_warnings_as_lines() -> Iterator[None]:
    """Say each warning for users once, in one line, without the line of code it comes from."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                warn(f"warning: {message}")
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("default", UserWarning)
        yield


def check_output(out: Path, overwrite: bool) -> None:
    """Raise InputError if no result may go there; warn that an earlier one will be replaced."""
    from deepff.report.save import LABELS, check_output_folder, earlier_outputs
    from deepff.runtime.outputs import read_manifest

    check_output_folder(out, overwrite)
    if read_manifest(out) is not None:
        made = [name for name in earlier_outputs(out) if name != LABELS]
        with_it = f", with {', '.join(made)} made of it" if made else ""
        warn(f"the result in {out} will be replaced{with_it}")


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def explained(
    factorization: "Factorization", importance: "Importance"
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of what the factors of one k mean."""
    classes = factorization.classes
    assert classes is not None, "importance needs them"
    header = ["factor", "name", "taken for", "share"]
    likeness = classes.likeness
    if likeness is not None:
        header += [f"like {word}" for word in classes.labels]
    for label in importance.labels:
        header += [f"{label}: falls by", "Sobol", "p"]
    rows = []
    shares, best = factorization.energy_shares, classes.best(2)
    falls = importance.mean_falls
    for j, name in enumerate(classes.names):
        probable = ", ".join(f"{label} {probability:.2f}" for label, probability in best[j])
        row = [str(j), name or "-", probable, f"{shares[j]:.1%}"]
        row += [] if likeness is None else [f"{cosine:.3f}" for cosine in likeness[j].tolist()]
        for fall, sobol, p in zip(
            falls[j], importance.sobol[j], importance.p_values[j], strict=True
        ):
            row += [f"{fall:.2f}", f"{sobol:.2f}", f"{p:.3f}"]
        rows.append(tuple(row))
    return tuple(header), rows


def without_any(n_images: int) -> str:
    """How many images have nothing in them, as the end of a sentence."""
    return f", {n_images} image{'s' if n_images > 1 else ''} without any" if n_images else ""


def summarize(result: "Result", out: Path) -> None:
    """Say what a run left out and found, and where its report is."""
    from deepff.discovery.choose_k import AGREED
    from deepff.discovery.contrast import separation_warning
    from deepff.regions.part_names import told_apart

    if result.skipped:
        shown = "; ".join(f"{file.name} ({file.reason})" for file in result.skipped[:3])
        n_more = len(result.skipped) - 3
        rest = f"; and {n_more} more, see {out / 'manifest.json'}" if n_more > 0 else ""
        warn(f"skipped {len(result.skipped)} of the files: {shown}{rest}")
    n = len(result.images)
    typer.echo(f"{n} image{'s' if n > 1 else ''}, {result.model} {result.layer}")
    for k, factorization in result.factorizations.items():
        shares = factorization.energy_shares.tolist()
        empty = [str(j) for j, share in enumerate(shares) if share == 0]
        if len(empty) == k:
            warn(f"at k = {k} all factors are empty, as the layer is zero; choose another layer")
        elif empty:
            warn(f"at k = {k} factor {', '.join(empty)} is empty; use a smaller k")
    if result.agreements is not None:
        agreed = ", ".join(f"{value:.2f} at k={k}" for k, value in result.agreements.items())
        typer.echo(f"agreement between two halves of the images: {agreed}")
        if max(result.agreements.values(), default=0) < AGREED:
            warn(
                f"at no k do two halves of the images agree by {AGREED}, so k is 1; choose k with "
                "-k"
            )
    if result.relative_errors:
        typer.echo(METHODS_IN_WORDS.get(result.method, result.method))
        typer.echo(f"relative error {result.relative_errors}")
    for k in result.factorizations:
        names = told_apart(result.names_of(k))
        if any(names):
            called = [f"factor {j} {name}" for j, name in enumerate(names) if name is not None]
            typer.echo(f"names at k={k}: {', '.join(called)}")
    if result.is_object and result.n_components > 1:
        scores = result.scores()
        is_there = scores >= MIN_SCORE if result.applied is not None else scores > 0
        counts = is_there.sum(0).tolist()
        kinds = ", ".join(f"factor {kind} in {count}" for kind, count in enumerate(counts))
        typer.echo(f"kinds of objects, with their number of images: {kinds}")
    if result.separation is not None:
        typer.echo(f"contrast between the images' inside and their border: {result.separation:.2f}")
        warning = separation_warning(result.separation, result.sources[-1].by_sign)
        if warning:
            warn(warning)
    typer.echo(out / "report.html")
