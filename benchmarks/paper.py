"""The paper's tables and figures with the paper's networks, on the official downloads.

    python benchmarks/paper.py DATA --out paper [--device cuda] [--only table2 --only table4]

DATA holds the downloads as they unpack; what is not there is named, and its tables are left out:

- ``icoseg/images/GROUP/`` and ``icoseg/ground_truth/GROUP/`` for Table 1 and Figure 3, and with
  part masks of one's own ``icoseg/parts/GROUP/`` (label PNGs and a labels.txt) for the bottom of
  Table 1 and Figure 4;
- ``VOCdevkit/VOC2007/`` of VOCtrainval_06-Nov-2007.tar, for Table 2;
- ``VOCdevkit/VOC2010/`` of VOCtrainval_03-May-2010.tar and ``Annotations_Part/`` of PASCAL-Part's
  trainval.tar.gz, for Tables 3 and 4 and Figure 5.

NMF is solved by the paper's multiplicative updates (``--solver mu``). Weights are those that
torchvision downloads, or finds in its folder (TORCH_HOME). To start it and leave: what is done is
not done again, activations are kept (``--no-cache`` if the disk is small), a table that fails does
not stop the others, and OUT/summary.md has what there is after each.

Table 3 asks a person which factor is which part: the first run leaves pictures in OUT/look; with
OUT/cow.yaml and OUT/horse.yaml written, the same command makes the table.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.datasets.pascal import TABLE3_PARTS, TABLE4_PARTS, load_pascal_part, load_voc
from deepff.evaluation.discovered_parts import TABLE4_CLASSES
from deepff.evaluation.objects import PAPER_SETS, icoseg_part_sets
from deepff.evaluation.paper_figures import FIGURE5_CLASSES
from deepff.runtime.files import atomic_path

VGG = ("--model", "vgg19", "--layer", "conv5_4")
# The last layer of each block: the paper's Figure 4a has several of VGG-19.
FIGURE_LAYERS = ("conv5_4", "conv5_1", "conv4_4", "conv3_4")
FIGURE_NETWORKS = ("vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "resnet101")
PART_CLASSES = dict.fromkeys([*TABLE3_PARTS, *TABLE4_CLASSES, *FIGURE5_CLASSES])


def repeated(option: str, values: Sequence[object]) -> list[str]:
    """The option before each of the values."""
    return [text for value in values for text in (option, str(value))]


def missing_data(data: Path) -> dict[str, str]:
    """For each command what is missing of its data; the images of what is there are printed."""
    icoseg, parts = data / "icoseg", data / "icoseg" / "parts"
    checks: dict[str, tuple[Sequence[str], Callable[[], Sequence]]] = {
        "iCoseg": (["table1", "figure3"], lambda: load_icoseg(icoseg, list(PAPER_SETS))),
        "iCoseg's parts": (
            ["figure4a", "figure4b"],
            lambda: [load() for load in icoseg_part_sets(icoseg, parts, [*PAPER_SETS]).values()],
        ),
        "VOC 2007": (["table2"], lambda: load_voc(data, year=2007)),
        "PASCAL-Part": (
            ["table3", "table4", "figure5"],
            lambda: load_pascal_part(data, {name: TABLE4_PARTS[name] for name in PART_CLASSES}),
        ),
    }
    missing: dict[str, str] = {}
    for name, (commands, load) in checks.items():
        try:
            sets = load()
        except InputError as error:
            print(f"{name}: {error}", flush=True)
            missing |= dict.fromkeys(commands, str(error))
        else:
            counts = ", ".join(f"{one.name} {len(one.images)}" for one in sets)
            print(f"{name}: {counts}", flush=True)
    return missing


def commands(data: Path, out: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """The arguments of ``deepff benchmark`` for each table and figure."""
    parts = data / "icoseg" / "parts"
    mappings = [path for path in (out / "cow.yaml", out / "horse.yaml") if path.is_file()]
    table3 = (
        repeated("--mapping", mappings) if mappings else ["--write-overlays", str(out / "look")]
    )
    common = ["--size", str(options.size), "--device", options.device, "--solver", "mu"]
    if options.cache:
        common += ["--cache", str(out / "cache")]
    icoseg = ["--data", str(data / "icoseg"), *(["--parts", str(parts)] if parts.is_dir() else [])]
    of_voc = ["--data", str(data)]
    arguments = {
        "table1": ["table1", *icoseg, *VGG],
        "table2": ["table2", *of_voc, *VGG],
        "table3": ["table3", *of_voc, *VGG, *table3],
        "table4": ["table4", *of_voc, *VGG],
        "figure3": ["figure3", *icoseg[:2], *VGG],
        "figure5": ["figure5", *of_voc, *VGG],
        "figure4a": ["figure4", *icoseg, *VGG[:2], *repeated("--layer", FIGURE_LAYERS)],
        "figure4b": ["figure4", *icoseg, *repeated("--model", FIGURE_NETWORKS)],
    }
    return {name: [*own, *common, "--out", str(out / name)] for name, own in arguments.items()}


def run(arguments: Sequence[str], record: Path) -> None:
    """Run one command, unless it is done; its record says how it went."""
    if record.is_file():
        before = json.loads(record.read_text(encoding="utf-8"))
        if before["arguments"] == list(arguments) and before["status"] == 0:
            print(f"{arguments[0]}: done before", flush=True)
            return
    print(f"{arguments[0]}: {shlex.join(['deepff', 'benchmark', *arguments])}", flush=True)
    record.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with record.with_suffix(".log").open("w", encoding="utf-8") as log:
        status = subprocess.run(
            [sys.executable, "-m", "deepff", "benchmark", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    minutes = (time.perf_counter() - began) / 60
    print(f"{arguments[0]}: status {status}, {minutes:.1f} minutes", flush=True)
    facts = {"arguments": list(arguments), "status": status, "minutes": round(minutes, 2)}
    with atomic_path(record) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def write_summary(out: Path, names: Sequence[str], missing: Mapping[str, str]) -> None:
    """OUT/summary.md: every table that there is, and what is missing of the others."""
    sections = ["# The paper's tables and figures"]
    for name in names:
        record = out / "records" / f"{name}.json"
        sections.append(f"## {name}")
        if name in missing:
            sections.append(f"Not run: {missing[name]}")
        elif not record.is_file():
            sections.append("Not run yet.")
        else:
            facts = json.loads(record.read_text(encoding="utf-8"))
            command = shlex.join(["deepff", "benchmark", *facts["arguments"]])
            sections.append(f"```\n{command}\n```\n\n{facts['minutes']} minutes.")
            if facts["status"]:
                log = record.with_suffix(".log").read_text(encoding="utf-8").splitlines()
                sections.append(f"**Failed** with status {facts['status']}: {(log or [''])[-1]}")
            for table in sorted((out / name).glob("*.md"), key=lambda path: path.stem):
                # Pictures lie in the table's own folder.
                sections.append(table.read_text(encoding="utf-8").replace("](", f"]({name}/"))
            plots = [*(out / name).glob("*.png"), *(out / name).glob(f"{name}.jpg")]
            sections += [f"![{name}]({name}/{plot.name})" for plot in plots]
    with atomic_path(out / "summary.md") as temporary:
        temporary.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def main() -> None:
    """Check the data, run what is not done, and write the summary after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("paper"))
    parser.add_argument("--only", action="append", help="a table or figure; may be repeated")
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    out: Path = options.out
    all_commands = commands(options.data, out, options)
    names = options.only or list(all_commands)
    if unknown := [name for name in names if name not in all_commands]:
        parser.error(f"no {unknown[0]}; there are {', '.join(all_commands)}")
    missing = missing_data(options.data)
    for name in names:
        if name not in missing:
            run(all_commands[name], out / "records" / f"{name}.json")
        write_summary(out, list(all_commands), missing)
    print(out / "summary.md")


if __name__ == "__main__":
    main()
