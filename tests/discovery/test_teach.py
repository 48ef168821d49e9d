"""The object's classifier, taught by masks that somebody has looked at."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from deepff.app.kept_masks import FOLDER
from deepff.app.label_content import content_of
from deepff.app.label_file import FILE, load_labels, run_digest
from deepff.app.labels import OBJECT, Labels, Settings
from deepff.app.lessons import TAUGHT, Lesson, save_bank, write_lesson
from deepff.app.masks import Masks
from deepff.cli.main import app
from deepff.discovery.apply import apply
from deepff.discovery.discover import discover
from deepff.discovery.teaching import classified, teach
from deepff.errors import InputError
from deepff.images.image_files import find_images
from deepff.report.load import load
from deepff.result import Result
from deepff.results.classifier import PixelClassifier
from deepff.results.sampling import cell_means


def taught(whole: Result, mask: np.ndarray) -> tuple[PixelClassifier, dict[str, torch.Tensor]]:
    """What a mask of the first image teaches, and what it makes of all images."""
    before = whole.factorization(1)
    assert before.classifier is not None
    masks = {whole.names[0]: mask.astype(np.uint8)}
    classifier = teach(whole, masks, 1, before.probabilities, before.classifier.sources)
    return classifier, classified(classifier, [image.item for image in whole.images])


GROUP = "021 Elephants-safari June 2008-timd2000"


@pytest.fixture(scope="module")
def whole(data_root: Path) -> Result:
    files = find_images(data_root / "icoseg" / "images" / GROUP)[:4]
    return discover(files, recipe="contrast", size=224)


@pytest.fixture(scope="module")
def truth(data_root: Path, whole: Result) -> np.ndarray:
    stem = Path(whole.names[0]).stem
    path = data_root / "icoseg" / "ground_truth" / GROUP / f"{stem}.png"
    return np.asarray(Image.open(path)) > 0


def likelihood(cells: torch.Tensor, truth: np.ndarray) -> float:
    """The mean logarithm of how likely the truth is on cells (h, w)."""
    object_ = cell_means(torch.from_numpy(truth)[None].float(), tuple(cells.shape))[0]
    likely = cells.clamp(1e-6, 1 - 1e-6)
    return float((object_ * likely.log() + (1 - object_) * (1 - likely).log()).mean())


def test_a_mask_teaches_its_image_and_the_others_the_same(whole: Result, truth: np.ndarray) -> None:
    before = whole.factorization(1).probabilities
    assert before is not None
    _, found = taught(whole, truth)
    assert list(found) == whole.names
    assert [tuple(cells.shape[1:]) for cells in found.values()] == before.grids
    first = found[whole.names[0]][0]
    assert likelihood(first, truth) > likelihood(before.grid(0)[0], truth)
    # Elephants stay elephants where nobody said a word.
    for index, name in enumerate(whole.names[1:], 1):
        one, other = found[name][0] >= 0.5, before.grid(index)[0] >= 0.5
        assert (one & other).sum() / (one | other).sum() > 0.8
    _, again = taught(whole, truth)
    assert all(torch.equal(again[name], found[name]) for name in found)

    # Somebody who wants what is around them gets less of them.
    around = taught(whole, ~truth)[1][whole.names[0]][0]
    assert likelihood(around, ~truth) > likelihood(first, ~truth)


def test_what_cannot_teach_is_refused(whole: Result, truth: np.ndarray) -> None:
    with pytest.raises(InputError, match="none of the masks belongs to an image of the set"):
        teach(whole, {"another.jpg": truth}, 1)
    with pytest.raises(InputError, match="no class or no background"):
        teach(whole, {whole.names[0]: np.zeros(truth.shape, np.uint8)}, 1)


def test_what_was_taught_goes_along_with_the_bank(
    whole: Result, truth: np.ndarray, tmp_path: Path
) -> None:
    files = [path for path in whole.paths if path is not None]
    result = replace(discover(files, 2, size=224), object=whole)
    result.save(tmp_path / "result")
    lesson = Lesson(*reversed(taught(whole, ~truth)))
    settings = Settings(2, masks=OBJECT, lesson=write_lesson(lesson, tmp_path / "result"))
    labels = Labels(run_digest(result), settings, tmp_path / "result")
    (tmp_path / "result" / FILE).write_text(json.dumps(content_of(labels)), "utf-8")
    bank, out = str(tmp_path / "result" / "concepts.safetensors"), str(tmp_path / "out")
    assert CliRunner().invoke(app, ["apply", bank, str(files[1]), "--out", out]).exit_code == 0

    applied = load(tmp_path / "out")
    carried = load_labels(tmp_path / "out", applied)
    values = [
        Masks(run).made(of, applied.names[0]).values
        for run, of in ((applied, carried), (result, labels))
    ]
    assert values[1].any() and (values[0] != values[1]).mean() < 0.002
    untaught = replace(labels, settings=replace(settings, lesson=""))
    assert (Masks(result).made(untaught, applied.names[0]).values != values[0]).mean() > 0.01

    # The lesson is a bank too, which works without the folder.
    save_bank(result, settings, tmp_path / "result")
    alone = (tmp_path / "result" / FOLDER / TAUGHT).rename(tmp_path / "alone.safetensors")
    (regions,) = apply(alone, [files[1]]).regions()
    assert (regions.masks[0].numpy() != (values[0] > 0)).mean() < 0.002
