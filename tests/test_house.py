"""The house as CONTRIBUTING.md has it: no circles, one place for every choice."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import deepff
from deepff.export.formats import FORMATS
from deepff.factorization import METHODS
from deepff.options import ExportFormat, Method, Refinement
from deepff.regions.regions import REFINERS

PACKAGE = Path(deepff.__file__).parent
ROOMS = [
    "errors",
    "options",
    "runtime",
    "images",
    "networks",
    "layers",
    "activations",
    "factorization",
    "results",
    "regions",
    "pictures",
    "meaning",
    "result",
    "discovery",
    "report",
    "export",
    "evaluation",
    "app",
    "cli",
]


def imports() -> dict[str, set[str]]:
    """What each file of the package imports of it, inside functions too.

    Except the front door, whose verbs import what they call when they are called.
    """
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        found[name] = set()
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body if name == "deepff.result" else ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in files else node.module
                # The package itself names everything, and is imported for its version alone.
                if target in files and target not in (name, "deepff"):
                    found[name].add(target)
    return found


def test_no_two_files_import_each_other_however_far_round() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


def test_rooms_import_only_to_their_left() -> None:
    def room(module: str) -> str:
        return module.removeprefix("deepff.").partition(".")[0]

    to_the_right = [
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if room(module) in ROOMS
        and ROOMS.index(room(target)) > ROOMS.index(room(module))
        # The front door: a notebook's verbs, which import what they call when they are called.
        and room(module) != "result"
    ]
    assert to_the_right == []
    listed = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(ROOMS) == listed - {"__init__", "__main__", "__pycache__", "py"}


def test_a_file_name_occurs_in_one_room() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(set(names)) == sorted(names)


def test_choices_need_no_torch() -> None:
    code = "import deepff.options, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_choice_has_what_does_it() -> None:
    assert set(FORMATS) == set(ExportFormat) and all(map(callable, FORMATS.values()))
    assert set(METHODS) == set(Method) - {Method.AUTO}
    # The classifier's probabilities come with the factorization, not with the image, and DFF-CRF's
    # masks with the whole set.
    others = {Refinement.NONE, Refinement.DFF_CRF, Refinement.CLASSIFIER}
    assert {*REFINERS, *others} == set(Refinement)
