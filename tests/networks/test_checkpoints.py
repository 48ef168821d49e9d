"""Files of weights that people have: what is in them is found, and what they are not is said."""

import argparse
import collections
import contextlib
import gzip
import io
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import load_file, save, save_file, save_model
from torch import Tensor, nn

from deepff.errors import InputError, InputWarning
from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.checkpoints import weights_digest
from deepff.networks.loading import load_backbone

Normed = Callable[[nn.Module], nn.Module]


class Small(nn.Module):
    """Stem, stage and head, as networks have them, with a few hundred weights."""

    def __init__(self, num_classes: int = 10, head: str = "fc") -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.stage = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
        self.add_module(head, nn.Linear(6, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stage(self.stem(x)).mean((2, 3)))


def small(seed: int = 0, **options: object) -> Small:
    torch.manual_seed(seed)
    return Small(**options).eval()


SOURCE = small()
STATE = SOURCE.state_dict()
OTHER = small(1).state_dict()


def prefixed(prefix: str, state: dict[str, Tensor] = STATE) -> dict[str, Tensor]:
    return {prefix + key: tensor for key, tensor in state.items()}


def headless() -> dict[str, Tensor]:
    return {key: tensor for key, tensor in STATE.items() if not key.startswith("fc.")}


def loaded(content: object, tmp_path: Path, network: nn.Module | None = None) -> Backbone:
    file = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    return load_backbone(small(2) if network is None else network, weights=file)


def stage_of(backbone: Backbone) -> Tensor:
    batch = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return forward_to_layers(backbone, [map_layers(backbone, 32).resolve("stage")], batch)[0]


def within_itself() -> dict[str, object]:
    content: dict[str, object] = {"state_dict": STATE, "best": STATE}
    content["self"] = content
    return content


def wrapped(wrapper: str) -> dict[str, Tensor]:
    """The keys where the modules inside stem and stage are wrapped."""
    return {key.replace(".", f".{wrapper}.", 1): tensor for key, tensor in STATE.items()}


WRAPPERS = (
    "module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod",
)

OPTIMIZER = torch.optim.Adam(SOURCE.parameters()).state_dict()

WHOLE = {
    "prefix model.": prefixed("model."),
    "prefix net.": prefixed("net."),
    "prefix backbone.": prefixed("backbone."),
    "prefix encoder.": prefixed("encoder."),
    "torch.compile": prefixed("_orig_mod."),
    "torch.compile of a parallel network": prefixed("module._orig_mod."),
    "a parallel network of compiled parts": {
        f"module.{key.replace('.', '._orig_mod.', 1)}": tensor for key, tensor in STATE.items()
    },
    **{f"{wrapper} inside": wrapped(wrapper) for wrapper in WRAPPERS},
    **{f"{w} inside and around": prefixed(f"module.{w}.", wrapped(w)) for w in WRAPPERS},
    "Lightning with a strategy": prefixed("_forward_module.model."),
    "DeepSpeed": {"module": STATE, "param_shapes": [{"fc.weight": torch.Size([10, 6])}]},
    "MMEngine, whose averaged weights are in state_dict": {
        "meta": {"mmengine_version": "0.10.4"},
        "state_dict": STATE,
        "ema_state_dict": {**prefixed("module.", OTHER), "steps": torch.tensor(9)},
    },
    "channels last": {
        k: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t
        for k, t in STATE.items()
    },
    "a prefix that nobody thought of": prefixed("learner.online.trunk."),
    "under state_dict_ema": {"state_dict_ema": STATE, "epoch": 3},
    "under model_ema": {"model_ema": STATE},
    "under params_ema, as BasicSR": {"params_ema": STATE},
    "deep inside": {"checkpoint": {"ema": {"module": prefixed("module.")}}},
    "in a list": [STATE, OPTIMIZER],
    "timm's training": {
        "arch": "small",
        "state_dict": STATE,
        "optimizer": OPTIMIZER,
        "args": argparse.Namespace(lr=0.1, names=["a"]),
        "metric": np.float64(0.75),
    },
    "NumPy's scalars and arrays": {
        "state_dict": STATE,
        "epoch": np.int64(3),
        "history": np.arange(3.0),
        "best": np.float32(0.5),
        "name": np.str_("run"),
    },
    "values of many classes": {
        "model": STATE,
        "path": Path("/data"),
        "counts": collections.Counter("aab"),
        "lists": collections.defaultdict(list, a=[1]),
        "queue": collections.deque([1, 2]),
        "size": torch.Size([1]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
    },
    "weights as NumPy's arrays": {"model": {k: t.numpy() for k, t in STATE.items()}},
    "parameters, not tensors": {k: nn.Parameter(t, False) for k, t in STATE.items()},
    "in half precision": {k: t.half() if t.is_floating_point() else t for k, t in STATE.items()},
    "within itself": within_itself(),
    "safetensors called .pth": save(STATE),
}


@pytest.mark.parametrize("case", WHOLE)
def test_whatever_holds_all_of_a_networks_weights_is_taken(tmp_path: Path, case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)  # nothing is missing and nothing left out
        backbone = loaded(WHOLE[case], tmp_path)
    assert backbone.missing == ()
    expected = SOURCE if case != "in half precision" else small().half().float()
    assert weights_digest(backbone.network) == weights_digest(expected)


PARTLY = {
    "MoCo": (
        {
            "state_dict": {
                **prefixed("module.encoder_q."),
                **prefixed("module.encoder_k.", OTHER),
                "module.queue": torch.zeros(2, 2),
            }
        },
        "weights weights.pth from 'state_dict', names without 'module.encoder_q.': left out "
        "'module.encoder_k.stem.0.weight', 'module.encoder_k.stem.0.bias' and 10 more",
    ),
    "teacher and student": (
        {"student": prefixed("backbone.", OTHER), "teacher": prefixed("backbone.")},
        "weights weights.pth from 'teacher', names without 'backbone.': used instead of 'student'",
    ),
    "teacher and student in one, as DINOv2": (
        {"model": {**prefixed("student.backbone.", OTHER), **prefixed("teacher.backbone.")}},
        "weights weights.pth from 'model', names without 'teacher.backbone.': left out "
        "'student.backbone.stem.0.weight', 'student.backbone.stem.0.bias' and 9 more",
    ),
    "averaged and last in one, as ema-pytorch": (
        {**prefixed("online_model.", OTHER), **prefixed("ema_model.")},
        "weights weights.pth, names without 'ema_model.': left out "
        "'online_model.stem.0.weight', 'online_model.stem.0.bias' and 9 more",
    ),
    "a word that has ema in it": (
        {**prefixed("instance."), **prefixed("semantic.", OTHER)},
        "weights weights.pth, names without 'instance.': left out "
        "'semantic.stem.0.weight', 'semantic.stem.0.bias' and 9 more",
    ),
    "averaged beside last": (
        {"state_dict": OTHER, "state_dict_ema": STATE},
        "weights weights.pth from 'state_dict_ema': used instead of 'state_dict'",
    ),
    "SWA": (
        {**prefixed("module."), "n_averaged": torch.tensor(5)},
        "weights weights.pth, names without 'module.': left out 'n_averaged'",
    ),
    "Lightning with its loss": (
        {"state_dict": {**prefixed("model."), "loss.weight": torch.ones(3)}},
        "weights weights.pth from 'state_dict', names without 'model.': left out 'loss.weight'",
    ),
    "a detector": (
        {**prefixed("backbone."), "neck.conv.weight": torch.ones(3)},
        "weights weights.pth, names without 'backbone.': left out 'neck.conv.weight'",
    ),
    "a decoder beside": (
        {**STATE, "decoder.weight": torch.ones(3), "mask_token": torch.ones(1)},
        "weights weights.pth: left out 'decoder.weight', 'mask_token'",
    ),
}


@pytest.mark.parametrize("case", PARTLY)
def test_what_is_left_out_of_a_checkpoint_is_said_in_one_line(tmp_path: Path, case: str) -> None:
    content, note = PARTLY[case]
    with pytest.warns(InputWarning) as caught:
        backbone = loaded(content, tmp_path)
    assert [str(warning.message) for warning in caught] == [note]
    assert weights_digest(backbone.network) == weights_digest(SOURCE)


HEADS = {
    "of another size": (small(num_classes=7).state_dict(), True),
    "none": (headless(), False),
    "none, under a prefix": (prefixed("trunk.", headless()), False),
    "a perceptron": (
        {**headless(), "fc.0.weight": torch.ones(3, 3), "fc.2.weight": torch.ones(3)},
        False,
    ),
    "of another name": (small(head="classifier").state_dict(), False),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_head_is_needed_only_by_what_comes_after_it(tmp_path: Path, case: str) -> None:
    content, other_shape = HEADS[case]
    with pytest.warns(InputWarning, match="missing is 'fc.weight', 'fc.bias'") as caught:
        backbone = loaded(content, tmp_path)
    assert backbone.missing == ("fc.weight", "fc.bias")
    assert ("another shape" in str(caught[0].message)) == other_shape
    reference = loaded(content if case == "of another size" else STATE, tmp_path, small())
    torch.testing.assert_close(stage_of(backbone), stage_of(reference), rtol=0, atol=0)
    assert stage_of(backbone).isfinite().all()
    batch = torch.zeros(1, 3, 8, 8)
    with torch.no_grad():
        assert backbone.network(batch).isnan().all()  # never a random head's scores
    with pytest.warns(InputWarning):
        again = loaded(content, tmp_path, small(5))
    assert again.weights_digest == backbone.weights_digest


@pytest.mark.filterwarnings("ignore::deepff.errors.InputWarning")
@pytest.mark.parametrize(
    ("file_of", "model"),
    [
        ("resnet34", "resnet18"),  # every name and shape of ResNet-18 is in it
        ("resnet34", "resnet50"),
        ("vgg11_bn", "vgg11"),
        ("densenet121", "densenet169"),
    ],
)
def test_another_network_of_the_family_is_refused(tmp_path: Path, file_of: str, model: str) -> None:
    with torch.device("meta"):
        shapes = torchvision.models.get_model(file_of, weights=None).state_dict()
    state = {key: torch.zeros(()).expand(t.shape) for key, t in shapes.items()}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(InputError, match=f"do not fit {model}: "):
        load_backbone(model, weights=tmp_path / "weights.pth")


@pytest.mark.filterwarnings("ignore::deepff.errors.InputWarning")
def test_heads_that_training_alone_uses_may_be_missing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = torchvision.models.googlenet(weights=None, aux_logits=False, init_weights=False)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    backbone = load_backbone("googlenet", weights=tmp_path / "weights.pth")
    assert all(key.startswith("aux") for key in backbone.missing) and backbone.missing
    layer = map_layers(backbone, 64).resolve("inception5b")
    batch = torch.zeros(1, 3, 64, 64)
    (features,) = forward_to_layers(backbone, [layer], batch)
    assert features.isfinite().all()


def test_an_own_network_around_what_the_file_holds(tmp_path: Path) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = small(3)
            self.segment = nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.segment(self.trunk.stage(self.trunk.stem(x)))

    with pytest.warns(InputWarning, match="missing is 'segment.weight', 'segment.bias'"):
        backbone = loaded(STATE, tmp_path, Around())
    assert weights_digest(backbone.network.trunk) == weights_digest(SOURCE)


def zipped(names: list[str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return stream.getvalue()


def scripted() -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(nn.Conv2d(3, 2, 1)), stream)
    return stream.getvalue()


OTHER_KINDS: dict[str, Callable[[], bytes]] = {
    "Git LFS": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n",
    "a page": lambda: b"\n <!DOCTYPE html><html><body>Sign in</body></html>",
    "JSON": lambda: b'{"metadata": {}, "weight_map": {}}',
    "TorchScript": scripted,
    "ONNX": lambda: b"\x08\x07\x12\x07pytorch\x1a\x052.4.0",
    "Keras": lambda: b"\x89HDF\r\n\x1a\n" + bytes(99),
    "GGUF": lambda: b"GGUF\x03" + bytes(99),
    "an array": lambda: b"\x93NUMPY\x01\0" + bytes(99),
    "arrays": lambda: zipped(["a.npy", "b.npy"]),
    "zip": lambda: zipped(["model/weights.pth", "model/README"]),
    "torch.export": lambda: zipped(["m/models/model.json"]),
    "a plain pickle": lambda: pickle.dumps({"model": {k: t.numpy() for k, t in STATE.items()}}),
    "gzip": lambda: gzip.compress(b"x"),
}


@pytest.mark.parametrize("case", OTHER_KINDS)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_file_of_weights_is_refused(tmp_path: Path, case: str, suffix: str) -> None:
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(OTHER_KINDS[case]())
    with pytest.raises(InputError, match=r"cannot be read as weights: .* saved by torch.save\("):
        load_backbone(small(), weights=file)


class Harmful:
    def __init__(self, call: tuple[Callable[..., object], tuple[object, ...]]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    """Neither what PyTorch blocks, nor what a stand-in takes the place of."""
    mark = tmp_path / "mark"
    mark.write_text("")
    for call in [
        (os.remove, (str(mark),)),
        (exec, (f"import os; os.remove({str(mark)!r})",)),
        (io.open, (str(mark), "w+b", 0)),
        (zipfile.ZipFile, (str(tmp_path / "made"), "w")),
        (getattr, (mark, "unlink")),
    ]:
        with contextlib.suppress(InputError):  # where PyTorch blocks it
            backbone = loaded({"model": STATE, "x": [Harmful(call)]}, tmp_path)
            assert weights_digest(backbone.network) == weights_digest(SOURCE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark", "weights.pth"]


def test_a_message_never_advises_to_load_unsafely(tmp_path: Path) -> None:
    for number, content in enumerate(
        [{"x": Harmful((os.remove, ("x",)))}, [Harmful((os.stat, ()))]]
    ):
        for legacy in (False, True):
            file = tmp_path / f"{number}.pth"
            torch.save(content, file, _use_new_zipfile_serialization=not legacy)
            with pytest.raises(InputError) as error:
                load_backbone(small(), weights=file)
            words = str(error.value)
            assert "weights_only" not in words and "safe_globals" not in words
            assert "\n" not in words and ". " not in words


def test_weights_of_8_bits_are_taken(tmp_path: Path) -> None:
    kind = torch.float8_e4m3fn
    state = {k: t.to(kind) if t.is_floating_point() else t for k, t in STATE.items()}
    backbone = loaded(state, tmp_path)
    assert torch.equal(backbone.network.fc.weight, STATE["fc.weight"].to(kind).float())


def test_other_protocols_and_tensors_without_values_are_named(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pth", pickle_protocol=4)
    with pytest.raises(InputError, match=r"a\.pth cannot be read as weights"):
        load_backbone(small(), weights=tmp_path / "a.pth")
    with pytest.raises(InputError, match="holds no plain tensors by name under stem"):
        loaded({key: tensor.to("meta") for key, tensor in STATE.items()}, tmp_path)


@pytest.mark.filterwarnings("ignore::deepff.errors.InputWarning")
def test_a_layer_that_needs_what_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    backbone = loaded(headless() | {"fc.weight": torch.ones(3, 3)}, tmp_path, torch_head())
    assert map_layers(backbone, 32).resolve().path == "stage"
    with pytest.raises(InputError, match=r"layer fc of WithMap needs 'fc.weight', which the file"):
        map_layers(backbone, 32).resolve("fc")


def torch_head() -> nn.Module:
    class WithMap(Small):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Conv2d(6, 10, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.stage(self.stem(x)))

    return WithMap()


def in_shards(folder: Path, kind: str) -> Path:
    """The index of STATE in two files, as transformers saves a large network."""
    names = [f"model-0000{i}-of-00002.{kind}" for i in (1, 2)]
    for i, name in enumerate(names):
        shard = {key: tensor for n, (key, tensor) in enumerate(STATE.items()) if n % 2 == i}
        (save_file if kind == "safetensors" else torch.save)(shard, folder / name)
    weight_map = {key: names[n % 2] for n, key in enumerate(STATE)}
    stem = "model" if kind == "safetensors" else "pytorch_model"
    index = folder / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_read_by_their_index_or_folder(tmp_path: Path, kind: str) -> None:
    index = in_shards(tmp_path, kind)
    torch.save(OPTIMIZER, tmp_path / "training_args.bin")
    for weights in (index, tmp_path):
        backbone = load_backbone(small(2), weights=weights)
        assert weights_digest(backbone.network) == weights_digest(SOURCE)
    (tmp_path / f"model-00002-of-00002.{kind}").unlink()
    with pytest.raises(InputError, match=f"model-00002-of-00002.{kind} does not exist"):
        load_backbone(small(2), weights=index)


def test_a_folder_with_one_file_of_weights_is_that_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no model.safetensors; name the file of weights"):
        load_backbone(small(2), weights=tmp_path)
    save_file(STATE, tmp_path / "model.safetensors")
    torch.save(OTHER, tmp_path / "pytorch_model.bin")
    backbone = load_backbone(small(2), weights=tmp_path)
    assert weights_digest(backbone.network) == weights_digest(SOURCE)
    save_file(OTHER, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"several files of weights \('adapter_model.safetensors'"):
        load_backbone(small(2), weights=tmp_path)


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    itself = json.dumps({"weight_map": {"fc.weight": index.name}})
    for text in ("{}", "[]", '{"weight_map": 3}', "x", itself):
        index.write_text(text)
        with pytest.raises(InputError, match=r"is not an index of weight files; pass"):
            load_backbone(small(), weights=index)


def test_the_checkpoints_of_pytorchs_imagenet_example(tmp_path: Path) -> None:
    """Which wraps the features of AlexNet and VGG, and all of other networks."""
    source = torchvision.models.alexnet()
    expected = weights_digest(source)
    source.features = nn.DataParallel(source.features)
    torch.save(
        {"arch": "alexnet", "state_dict": source.state_dict()}, tmp_path / "checkpoint.pth.tar"
    )
    backbone = load_backbone("alexnet", weights=tmp_path / "checkpoint.pth.tar")
    assert backbone.network.state_dict().keys() != source.state_dict().keys()
    assert weights_digest(backbone.network) == expected


def test_a_wrapped_network_takes_plain_weights(tmp_path: Path) -> None:
    network = small(2)
    network.stage = nn.DataParallel(network.stage)
    for own in (network, nn.DataParallel(network), torch.compile(network)):
        backbone = loaded(STATE, tmp_path, own)
        assert [*backbone.network.state_dict()] != [*STATE] and not backbone.missing
        for tensor, expected in zip(
            backbone.network.state_dict().values(), STATE.values(), strict=True
        ):
            assert torch.equal(tensor, expected)


def test_tensors_that_a_network_shares_are_filled_by_either_name(tmp_path: Path) -> None:
    """safetensors saves them once, and so does transformers."""

    def tied(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1))
        network[2].weight = network[0].weight
        return network

    save_model(tied(0), str(tmp_path / "model.safetensors"))
    names = load_file(tmp_path / "model.safetensors").keys()
    assert ("0.weight" in names) != ("2.weight" in names)
    backbone = load_backbone(tied(1), weights=tmp_path / "model.safetensors")
    assert not backbone.missing
    assert weights_digest(backbone.network) == weights_digest(tied(0))


OLD, NEW = nn.utils.weight_norm, nn.utils.parametrizations.weight_norm


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(("saved", "wanted"), [(OLD, NEW), (NEW, OLD), (NEW, NEW)])
def test_weight_norm_of_either_spelling(tmp_path: Path, saved: Normed, wanted: Normed) -> None:
    source, network = small(), small(2)
    saved(source.stage[0])
    wanted(network.stage[0])
    backbone = loaded(source.state_dict(), tmp_path, network)
    torch.testing.assert_close(stage_of(backbone), stage_of(load_backbone(source)))


def test_the_old_names_of_densenet(tmp_path: Path) -> None:
    """As of CheXNet and Places365, saved before torchvision 0.2.1."""
    source = torchvision.models.densenet121(weights=None)
    old = {
        "module." + re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", key): tensor
        for key, tensor in source.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    assert "module.features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save({"state_dict": old}, tmp_path / "weights.pth")
    backbone = load_backbone("densenet121", weights=tmp_path / "weights.pth")
    assert not backbone.missing
    assert weights_digest(backbone.network) == weights_digest(source)


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_tensors_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(STATE["stem.0.weight"], 0.25, 0, torch.qint8)
    for weight in (quantized, STATE["stem.0.weight"].to_sparse()):
        with pytest.raises(InputError, match=r"lacks 'stem.0.weight'.*plain state dict"):
            loaded(STATE | {"stem.0.weight": weight}, tmp_path)
    with pytest.raises(InputError, match="holds no plain tensors by name under model, ema; give"):
        loaded({"model": SOURCE, "ema": None}, tmp_path)


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_adapters_that_are_not_merged_are_refused(tmp_path: Path, prefix: str) -> None:
    """Of loralib and PEFT: without them the network would be the one before fine-tuning."""
    base = "stem.0.base_layer." if prefix else "stem.0."
    state = {key.replace("stem.0.", base): tensor for key, tensor in STATE.items()}
    adapter = {"stem.0.lora_A.default.weight": torch.ones(2, 6)}
    for content in (prefixed(prefix, state | adapter), prefixed(prefix, adapter)):
        with pytest.raises(InputError, match="adapters merged"):
            loaded(content, tmp_path)
