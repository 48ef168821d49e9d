"""Pages of the site that are made from what is elsewhere: the commands, the notebooks, root files.

A hook of MkDocs (``mkdocs.yml``); they are written only into the site itself.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.core import TyperCommand, TyperGroup

from deepff.cli.main import app

ROOT = Path(__file__).parents[1]
COPIED = {"contributing.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}
SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "search-from-disk.js"
NOTEBOOKS = {
    "guides/notebook.md": "arrays_to_coco",
    "guides/paper.md": "paper_in_ten_minutes",
    "guides/hugging-face.md": "hugging_face_dataset",
    "guides/segmenter.md": "folder_to_segmenter",
    "guides/sees.md": "what_a_network_sees",
    "guides/digits.md": "digits",
    "guides/transformer.md": "vision_transformer",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of ``docs/``."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in COPIED.items()}
    pages["reference/commands.md"] = commands_page()
    pages |= {
        page: notebook_page(ROOT / "examples" / f"{name}.ipynb") for page, name in NOTEBOOKS.items()
    }
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings name functions as Sphinx does (:func:`name`); only the name is shown."""
    return re.sub(r":(?:func|mod|class|meth|attr):(?=<code>)", "", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The script by which search works from disk is the site's own, and no other server's."""
    return output.replace(SHIM, "../" * page.url.count("/") + OWN_SHIM)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    return output.replace(SHIM, OWN_SHIM)


def commands_page() -> str:
    """Every command with its arguments and options, in Markdown."""
    sections = [
        f"## {path}\n\n{_paragraphs(command)}\n\n{_parameters(command, path)}"
        for path, command in _commands(typer.main.get_command(app), "deepff")
    ]
    return (
        "# Commands\n\nThis page lists every command and option. `-h` prints the same.\n\n"
        + "\n\n".join(sections)
    )


def notebook_page(path: Path) -> str:
    """The cells of an executed notebook and what they gave, in Markdown."""
    blocks = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else _fenced(source, "python"))
        blocks += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(blocks)


def _commands(command: Any, path: str) -> Iterator[tuple[str, TyperCommand]]:
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name, subcommand in command.commands.items():
        if not subcommand.hidden:
            yield from _commands(subcommand, f"{path} {name}")


def _paragraphs(command: TyperCommand) -> str:
    help_text = (command.help or "").strip()
    if command.epilog is None:
        return help_text
    # Typer's epilog has an empty line after each line.
    examples = [line for line in command.epilog.splitlines() if line.startswith("deepff ")]
    return f"{help_text}\n\n{_fenced(chr(10).join(examples), 'sh')}"


def _parameters(command: TyperCommand, path: str) -> str:
    context = typer.Context(command, info_name=path)
    by_panel: dict[str, list[str]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        is_argument = parameter.param_type_name == "argument"
        panel = parameter.rich_help_panel or ("Arguments" if is_argument else "Options")
        if record is not None:
            names, text = (" ".join(part.split()) for part in record)
            text = text.replace("|", "\\|")  # within code it does not end a cell
            by_panel.setdefault(panel, []).append(f"| `{names}` | {text} |")
    return "\n\n".join(
        f"| {panel} | |\n|---|---|\n" + "\n".join(lines) for panel, lines in by_panel.items()
    )


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            encoded = "".join(data[kind]).replace("\n", "")
            return f"![What the cell shows](data:{kind};base64,{encoded})"
    if "image/svg+xml" in data:
        return f"<div>{''.join(data['image/svg+xml'])}</div>"
    if "text/html" in data:
        # An empty line would end Markdown's block of HTML.
        lines = "".join(data["text/html"]).splitlines()
        return f"<div>{' '.join(line.strip() for line in lines if line.strip())}</div>"
    return _fenced("".join(data.get("text/plain", output.get("text", ""))), "text")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
