"""The command ``deepff``."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deepff import __version__
from deepff.cli.benchmark import app as benchmark_app
from deepff.cli.messages import user_warnings_as_lines, warn
from deepff.cli.network_commands import compare, explain, layers, models
from deepff.cli.parameters import Command, DeviceChoice, Photos, factor_counts, with_panels
from deepff.cli.region_commands import export, localize, segment
from deepff.cli.run_commands import apply, discover
from deepff.errors import InputError
from deepff.options import Device


class _Group(TyperGroup):
    """Turns an error that a user can fix into one sentence and an exit status, no traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = ["deepff", *args]  # what a result says it was made by
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with user_warnings_as_lines():
                return super().invoke(ctx)
        except InputError as error:
            warn(f"error: {error}")
            raise typer.Exit(2) from None
        except BrokenPipeError:  # `deepff layers vgg19 | head`: the reader has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            warn(f"error: {error.strerror or error}{where}")
            raise typer.Exit(2) from None
        except RuntimeError as error:
            # One of the processes of a shared run is gone, and its connections with it.
            distributed = sys.modules.get("deepff.runtime.distributed")
            if distributed is None or distributed.n_ranks() == 1:
                raise
            warn(f"error: another process of this run has stopped ({str(error).splitlines()[0]})")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            warn(f"interrupted; {_going_on(ctx)}")
            raise typer.Exit(130) from None


def _going_on(ctx: Any) -> str:
    """What the same command would do if it ran again."""
    command = ctx.command.commands.get(ctx.invoked_subcommand)
    commands = [command, *getattr(command, "commands", {}).values()]
    options = [option for each in commands for option in getattr(each, "params", ())]
    if any("--cache" in option.opts for option in options):
        return "run the same command with --cache again to resume"
    return "earlier results are unchanged, and the same command starts over"


app = typer.Typer(
    name="deepff",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(benchmark_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepff {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Deep Feature Factorization: see what a network treats as the same thing across images."""


EXAMPLES = """Examples:

deepff discover photos/ -k 4 --out result

deepff discover "photos/**/*.jpg" -k 1-4 --model vgg19 --layer conv5_4
"""


app.command(epilog=EXAMPLES, cls=Command)(with_panels(discover))
for command in (apply, explain, segment, localize, export):
    app.command(cls=Command)(with_panels(command))
for quick_command in (compare, models, layers):
    app.command(cls=Command)(quick_command)


@app.command(cls=Command)
def show(folder: Annotated[Path, typer.Argument(help="Folder of a result.")]) -> None:
    """Open the report of a result in the browser."""
    import webbrowser

    from deepff.report.manifest import complete_manifest

    report = (folder / "classes.html").resolve()  # of all results in the folder
    if not report.is_file():
        complete_manifest(folder)
        report = report.with_name("report.html")
    if not report.is_file():
        raise InputError(f"{folder} has no report.html; run its command again")
    typer.echo(report)
    webbrowser.open(report.as_uri())


@app.command(cls=Command)
def label(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Folder of a result, or images: folders, files, globs, archives or addresses. "
            "Images are factorized first.",
            show_default=False,
        ),
    ],
    k: Annotated[
        str | None, typer.Option("-k", help="Numbers of factors of a new result. By default 1-6.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a new result. By default result.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Existing labels, for images that you have not decided about: a file or folder "
            "of COCO, YOLO outlines, LabelMe, or label maps as PNG.",
            show_default=False,
        ),
    ] = None,
    segmenter: Annotated[
        str | None,
        typer.Option(
            help="Network of the SAM family that answers clicks: hf/OWNER/NAME, such as "
            "hf/facebook/sam-vit-base, or the folder of one. Needs transformers.",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="By default the first free one from 7860.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default is open to this machine only.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another host name that the page is opened by, such as a proxy's. Repeatable.",
            show_default=False,
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="Path that a proxy serves the page under, such as /label.")
    ] = "",
    photos: Photos = None,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Name factors in the browser, check the images, and export masks and boxes."""
    import webbrowser
    from threading import Thread

    from deepff.app.label_file import FILE
    from deepff.app.segmenter import Segmenter
    from deepff.app.server import is_loopback, serve
    from deepff.app.workspace import open_workspace

    answers = None if segmenter is None else Segmenter(segmenter, device)
    workspace = open_workspace(
        sources, out, None if k is None else factor_counts(k), device, photos, labels
    )
    workspace.segmenter = answers
    if not is_loopback(host):
        warn(
            f"anyone who reaches {host} can see the images in {workspace.folder} and change labels"
        )

    def announce(url: str) -> None:
        typer.echo(url)
        if browser:  # in a thread, as some browsers keep whoever opens them waiting
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    try:
        serve(workspace, host, port, announce, allow_host or [], root_path)
    except KeyboardInterrupt:
        if (saved := workspace.folder / FILE).exists():
            typer.echo(f"saved in {saved}")
