"""How like words factors are, against what open_clip itself computes, with random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

import deepff
from deepff.cli.main import app
from deepff.errors import InputError, InputWarning
from deepff.meaning.open_network import network_input
from deepff.networks.class_labels import read_words

WORDS = ("cat", "dog", "a red car")
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
# Each with the layer that is read; of images of 32 pixels it has one cell.
TOWERS = {
    "deepff-test-resnet": ({"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}, "layer4"),
    "deepff-test-vit": (
        {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 32},
        "conv1",
    ),
}


@pytest.fixture(params=TOWERS)
def network(request: pytest.FixtureRequest, tmp_path: Path):
    """The network's name and layer, the network itself and a file of its weights."""
    open_clip = pytest.importorskip("open_clip")
    vision, layer = TOWERS[request.param]
    config = tmp_path / f"{request.param}.json"
    config.write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": TEXT}))
    open_clip.add_model_config(config)
    torch.manual_seed(1)
    model = open_clip.create_model(request.param).eval()
    with torch.no_grad():
        for parameter in model.visual.parameters():
            if parameter.ndim == 1:  # as trained ones, which are not all alike
                parameter.add_(0.3 * torch.rand_like(parameter))
    file = tmp_path / "weights.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, file)
    return f"open_clip/{request.param}", layer, model, file


def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)


def cosines(model, image: Tensor) -> Tensor:
    """Of an image with the words, by open_clip alone."""
    open_clip = pytest.importorskip("open_clip")
    with torch.no_grad():
        text = model.encode_text(open_clip.SimpleTokenizer()([*WORDS]), normalize=True)
        return model.encode_image(image, normalize=True) @ text.T


def test_a_factor_that_is_all_there_is_is_as_like_words_as_the_image(network, tmp_path):
    name, layer, model, file = network
    backbone = deepff.load_backbone(name, weights=file, words=WORDS)
    result = deepff.discover([photo()], 1, model=backbone, layer=layer, size=32)
    image = network_input(result, result.opened[0], 0)
    expected = cosines(model, image)
    assert expected.std() > 0.01
    found = result.classes()
    assert found.labels == WORDS
    assert (found.likeness - expected).abs().max() < 1e-4
    scale = model.logit_scale.exp().item()
    assert (result.class_scores() - scale * expected).abs().max() < 1e-3
    best, probability = found.best(1)[0][0]
    assert best == WORDS[int(expected.argmax())]
    assert result.factor_names == [best if probability >= 0.5 else None]


def test_the_command_and_the_report_say_how_like_words_factors_are(network, tmp_path):
    name, layer, model, file = network
    from PIL import Image

    Image.fromarray(photo()).save(tmp_path / "photo.png")
    with pytest.warns(InputWarning, match="left out"):  # the text tower, which nothing asked for
        plain = deepff.load_backbone(name, weights=file)
    result = deepff.discover([tmp_path / "photo.png"], 1, model=plain, layer=layer, size=32)
    assert result.factor_names == [None] and "has no classes" in result.unnamed
    image = network_input(result, result.opened[0], 0)
    expected = [f"{value:.3f}" for value in cosines(model, image)[0].tolist()]
    out = tmp_path / "result"
    result.save(out)
    asked = ["explain", str(out), "--weights", str(file), "--words"]
    said = CliRunner().invoke(app, [*asked, ", ".join(WORDS)])
    assert said.exit_code == 0, said.output
    header = next(line for line in said.stdout.splitlines() if line.startswith("factor"))
    row = next(line for line in said.stdout.splitlines() if line.startswith("0 "))
    places = [header.index(f"like {word}") for word in WORDS]
    assert [row[place:].split()[0] for place in places] == expected
    page = (out / "report.html").read_text()
    assert all(value in page for value in expected) and "similarity to the word" in page
    loaded = deepff.load(out)
    assert loaded.classes().labels == WORDS
    assert [f"{value:.3f}" for value in loaded.classes().likeness[0].tolist()] == expected


def test_words_come_from_the_line_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("cat\na red car\n")
    assert read_words("cat, a red car") == read_words(str(tmp_path / "words.txt"))
    with pytest.raises(InputError, match="words with commas between"):
        read_words("cat,,dog")


def test_networks_that_cannot_read_say_so(network, tmp_path):
    name, _, model, file = network
    with pytest.raises(
        InputError, match="efficientnet_lite0 has none; use a network from open_clip"
    ):
        deepff.load_backbone(words=WORDS)
    with pytest.raises(
        InputError, match="weights are random, so it cannot compare images with words"
    ):
        deepff.load_backbone(name, pretrained=False, words=WORDS)
    with pytest.raises(InputError, match="pass only one of the two"):
        deepff.load_backbone(name, weights=file, words=WORDS, labels=WORDS)
    with pytest.raises(InputError, match="words that are not empty"):
        deepff.load_backbone(name, weights=file, words=[])
    images = tmp_path / "images.safetensors"
    held = model.visual.state_dict()
    save_file({key: tensor.contiguous() for key, tensor in held.items()}, images)
    with pytest.raises(InputError, match=r"images\.safetensors"):
        deepff.load_backbone(name, weights=images, words=WORDS)
