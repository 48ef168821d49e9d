"""Files of weights that people have: what is in them is found, and what they are not is said."""

import argparse
import collections
import contextlib
import gzip
import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save, save_file
from torch import Tensor, nn

from deepff.errors import InputError, InputWarning
from deepff.layers.later import forward_to_layers
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone
from deepff.networks.weights import weights_digest


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
    "sparse": {k: t.to_sparse() if k == "fc.weight" else t for k, t in STATE.items()},
    "within itself": within_itself(),
    "safetensors called .pth": save(STATE),
    "a pickled network": SOURCE,
    "a pickled network in a dict": {"model": nn.DataParallel(SOURCE), "ema": None},
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
        "weights weights.pth from 'teacher', names without 'backbone.': taken rather than "
        "'student'",
    ),
    "averaged beside last": (
        {"state_dict": OTHER, "state_dict_ema": STATE},
        "weights weights.pth from 'state_dict_ema': taken rather than 'state_dict'",
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
        ("resnet18", "resnet34"),
        ("resnet34", "resnet50"),
        ("vgg13", "vgg11"),
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


OTHER_KINDS: dict[str, tuple[Callable[[], bytes], str]] = {
    "Git LFS": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n",
        "is a Git LFS pointer and not the file itself; run git lfs pull",
    ),
    "a page": (lambda: b"\n <!DOCTYPE html><html><body>Sign in</body></html>", "is a web page"),
    "another page": (lambda: b"<html>", "is a web page"),
    "JSON": (lambda: b'{"metadata": {}, "weight_map": {}}', "is a JSON file"),
    "TorchScript": (scripted, "is a TorchScript archive, a program and not weights"),
    "ONNX": (lambda: b"\x08\x07\x12\x07pytorch\x1a\x052.4.0", "is an ONNX graph"),
    "Keras": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), "is an HDF5 file, as Keras writes"),
    "GGUF": (lambda: b"GGUF\x03" + bytes(99), "is a GGUF file"),
    "an array": (lambda: b"\x93NUMPY\x01\0" + bytes(99), "is a NumPy array"),
    "arrays": (lambda: zipped(["a.npy", "b.npy"]), "is an archive of NumPy arrays"),
    "zip": (lambda: zipped(["model/weights.pth", "model/README"]), "is a ZIP archive; unpack"),
    "torch.export": (lambda: zipped(["m/models/model.json"]), "is an archive of torch.export"),
    "a plain pickle": (
        lambda: pickle.dumps({"model": {k: t.numpy() for k, t in STATE.items()}}),
        "is a pickle that torch.save did not write",
    ),
    "gzip": (lambda: gzip.compress(b"x"), "is a gzip archive; unpack it first"),
}


@pytest.mark.parametrize("case", OTHER_KINDS)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_file_of_weights_is_called_what_it_is(
    tmp_path: Path, case: str, suffix: str
) -> None:
    content, words = OTHER_KINDS[case]
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content())
    with pytest.raises(InputError) as error:
        load_backbone(small(), weights=file)
    assert str(error.value).startswith(f"{file} {words}")
    assert "weights_only" not in str(error.value)


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
    with pytest.raises(InputError, match=r"pickled by another protocol than torch.save's own"):
        load_backbone(small(), weights=tmp_path / "a.pth")
    with pytest.raises(InputError, match="holds no state dict but the keys stem"):
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


def test_a_file_in_shards_is_named(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}, "weight_map": {}}')
    with pytest.raises(InputError, match="is the index of weights in several files; join these"):
        load_backbone(small(), weights=index)
