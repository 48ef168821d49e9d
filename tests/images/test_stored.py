"""Images in archives and on servers: the same bits as in a folder, and nothing of a secret kept."""

import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import metadata
from pathlib import Path
from threading import Thread

import fsspec
import numpy as np
import pytest
from made_images import encoded, photograph
from PIL import Image

from deepff.errors import InputError
from deepff.images import stored
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import ImageFile, find_images
from deepff.images.image_set import origin_digest, origin_size, read_pixels
from deepff.images.stored import StoredFile, in_braces, public

NAMES = ["a b.png", "img2.jpg", "img10.jpg", "sub/é #1?.jpg"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    (root / "sub").mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        kind = "PNG" if name.endswith("png") else "JPEG"
        (root / name).write_bytes(encoded(kind, photograph(40, 60, seed)))
    (root / ".hidden.jpg").write_bytes(encoded("JPEG"))
    return root


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket on a server of this machine."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "name")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "word")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    server.stop()


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, file.relative_to(folder))
    return path


def tarred(folder: Path, suffix: str) -> Path:
    path = folder.with_suffix(suffix)
    mode = {".tar": "w", ".tgz": "w:gz", ".tar.gz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}
    with tarfile.open(path, mode[suffix]) as archive:
        archive.add(folder, ".")
    return path


def uploaded(path: Path, to: str) -> str:
    """Copy a file or folder to an address; returns where it is."""
    system, target = fsspec.core.url_to_fs(f"{to}/{path.parent.name}/{path.name}")
    system.put(str(path), target, recursive=path.is_dir())
    return f"{to}/{path.parent.name}/{path.name}"


SOURCES: dict[str, Callable[[Path], str | Path]] = {
    "zip": zipped,
    "zip, chained": lambda folder: f"zip://**::{zipped(folder)}",
    **{
        suffix: partial(tarred, suffix=suffix) for suffix in (".tar", ".tgz", ".tar.bz2", ".tar.xz")
    },
    "memory": lambda folder: uploaded(folder, "memory://files"),
    "memory, glob": lambda folder: uploaded(folder, "memory://files") + "/**",
    "memory, zip": lambda folder: uploaded(zipped(folder), "memory://files"),
    "s3": lambda folder: uploaded(folder, "s3://bucket"),
    "s3, glob": lambda folder: uploaded(folder, "s3://bucket") + "/**",
    "s3, tar.gz": lambda folder: uploaded(tarred(folder, ".tar.gz"), "s3://bucket"),
}


def same(images: list[ImageFile], folder: Path) -> bool:
    """Whether images have the names, sizes, digests and pixels of those in the folder."""
    local = find_images(folder)
    assert [image.name for image in images] == [image.name for image in local]
    return all(
        origin_size(a.origin) == origin_size(b.origin)
        and origin_digest(a.origin) == origin_digest(b.origin)
        and np.array_equal(read_pixels(a.origin), read_pixels(b.origin))
        for a, b in zip(images, local, strict=True)
    )


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_gives_the_bits_of_a_folder(
    source: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    if source.startswith("s3"):
        request.getfixturevalue("s3")
    assert [image.name for image in find_images(folder)] == NAMES
    images = find_images(SOURCES[source](folder))
    assert same(images, folder)
    # A manifest keeps the address alone.
    again = [ImageFile(StoredFile(str(image.path)), image.name) for image in images]
    assert same(again, folder)


def test_one_image_of_a_server_and_its_name(folder: Path) -> None:
    pytest.importorskip("aiohttp")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    try:
        (image,) = find_images(f"http://{host}/img2.jpg?id=3&X-Amz-Signature=abc")
        assert image.name == "img2.jpg" and str(image.path) == f"http://{host}/img2.jpg?id=3&"
        assert np.array_equal(read_pixels(image.path), read_pixels(folder / "img2.jpg"))
        both = find_images([f"http://{host}/img2.jpg", f"http://{host}/img10.jpg", folder / "sub"])
        assert [each.name for each in both] == ["img2.jpg", "img10.jpg", "é #1?.jpg"]
        with pytest.raises(InputError, match=r"cannot find 'http://127.0.0.1:\d+/no.jpg'"):
            find_images(f"http://me:word@{host}/no.jpg")
    finally:
        server.shutdown()


def test_several_sources_have_names_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped(folder).rename(folder.parent / "shard-08.zip")
    zipped(folder).rename(folder.parent / "shard-09.zip")
    expected = [f"shard-{n}/{name}" for n in ("08", "09") for name in NAMES]
    for text in ("shard-{08..09}.zip", "shard-{08,09}.zip", "shard-*.zip"):
        images = find_images(folder.parent / text)
        assert [image.name for image in images] == expected
        monkeypatch.chdir(folder.parent)
        assert find_images(text) == images
    with pytest.raises(InputError, match=r"no file matches 'other-\*\.zip'"):
        find_images("other-*.zip")
    mixed = find_images([folder, folder.parent / "shard-09.zip"])
    assert [image.name for image in mixed] == [*(f"photos/{n}" for n in NAMES), *expected[4:]]


def test_labels_with_a_photographs_name_are_no_images(tmp_path: Path) -> None:
    """As in a folder; a WebDataset shard has such labels."""
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("1.jpg", "1.txt", "1.cls", "1.json", "a/1.png", "a/2.txt"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert [image.name for image in find_images(path)] == ["1.jpg", "a/1.png", "a/2.txt"]


def test_braces_are_those_of_a_shell() -> None:
    assert in_braces("a{008..011}{x,yz}.tar")[1:3] == ["a008yz.tar", "a009x.tar"]
    assert len(in_braces("a{008..011}{x,yz}.tar")) == 8
    assert in_braces("a{b}.tar") == ["a{b}.tar"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:word@host/a.jpg", "https://host/a.jpg"),
        ("zip://a.jpg::https://me:w@host/p.zip", "zip://a.jpg::https://host/p.zip"),
        ("https://h/a?X-Amz-Credential=x&X-Amz-Signature=y&id=3", "https://h/a?id=3"),
        ("https://h/a?sv=1&sig=a%3D 'https://u@h/b'", "https://h/a?sv=1& 'https://h/b'"),
        ("a@b.jpg s3://bucket/a@b.jpg", "a@b.jpg s3://bucket/a@b.jpg"),
    ],
)
def test_what_is_kept_of_an_address_holds_no_secret(text: str, shown: str) -> None:
    assert public(text) == shown


def reasons(path: Path) -> dict[str, str]:
    """By name, why members of an archive cannot be read."""
    found = {}
    for image in find_images(path):
        try:
            read_pixels(image.origin)
        except UnreadableImageError as error:
            found[image.name] = str(error)
    return found


def test_members_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    good, path = encoded("JPEG"), tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("good.jpg", "broken.jpg", "locked.jpg", "../out.jpg"):
            archive.writestr(name, good)
        archive.writestr("bomb.png", bytes(10**7), zipfile.ZIP_DEFLATED)
        archive.writestr("notes.txt", "text")
    data = bytearray(path.read_bytes())
    at = data.index(b"broken.jpg") + 500
    data[at] ^= 0xFF
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.index(header, data.index(b"locked.jpg", 0 if flags == 6 else -800) - 60)
        data[start + flags] |= 1
    path.write_bytes(data)
    assert reasons(path) == {
        "../out.jpg": "its name leads out of the archive",
        "bomb.png": "10 MB once it is unpacked",
        "broken.jpg": "damaged or unsupported",
        "locked.jpg": "encrypted",
        "notes.txt": "not an image in a format that is read",
    }
    assert not (tmp_path.parent / "out.jpg").exists()


def test_a_truncated_archive_is_refused_in_a_sentence(tmp_path: Path, folder: Path) -> None:
    for path in (zipped(folder), tarred(folder, ".tar.gz")):
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(InputError, match=f"{path.name} cannot be read: "):
            find_images(path)


def test_a_bomb_in_a_compressed_tar_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "photos.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in (("a.jpg", encoded("JPEG")), ("b.png", bytes(10**7))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert reasons(path) == {"b.png": "10 MB once it is unpacked"}


def test_members_of_a_tar_that_are_no_images_of_it(tmp_path: Path) -> None:
    """Names that lead out, links, devices, holes, and a name that comes twice."""
    (tmp_path / "secret.jpg").write_bytes(encoded("JPEG"))
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w") as archive:
        members = {
            "good.jpg": tarfile.REGTYPE,
            "../out.jpg": tarfile.REGTYPE,
            "link.jpg": tarfile.SYMTYPE,
            "loop.jpg": tarfile.SYMTYPE,
            "leads out.jpg": tarfile.SYMTYPE,
            "pipe.jpg": tarfile.FIFOTYPE,
        }
        targets = {"loop.jpg": "loop.jpg", "leads out.jpg": "../secret.jpg", "link.jpg": "good.jpg"}
        for name, kind in members.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, targets.get(name, "")
            data = encoded("JPEG") if kind == tarfile.REGTYPE else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert reasons(path).keys() == {"../out.jpg", "loop.jpg", "leads out.jpg", "pipe.jpg"}
    good = next(image for image in find_images(path) if image.name == "link.jpg")
    assert np.array_equal(read_pixels(good.path), np.asarray(Image.open(tmp_path / "secret.jpg")))


def test_a_file_system_of_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the packages that fsspec itself would import, none of which is there."""
    packages = ("s3fs", "gcsfs", "huggingface_hub", "aiohttp")
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            monkeypatch.delitem(sys.modules, name)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    imported = sys.modules["fsspec.registry"]._registry
    for protocol in list(imported):
        monkeypatch.delitem(imported, protocol)
    extras = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf", "https": "http"}
    for protocol, extra in extras.items():
        message = rf"{protocol}://a/b\.jpg needs a package .* pip install 'deepff\[{extra}\]'"
        with pytest.raises(InputError, match=message):
            find_images(f"{protocol}://a/b.jpg")
        with pytest.raises(InputError, match=message.replace("jpg", "zip")):
            find_images(f"{protocol}://a/b.zip")
        assert extra in metadata("deepff").get_all("Provides-Extra")


def test_an_image_that_changes_on_the_server_is_read_again() -> None:
    system = fsspec.filesystem("memory")
    for seed in (1, 2):
        system.pipe("/changing/a.png", encoded("PNG", photograph(seed=seed)))
        (image,) = find_images("memory://changing/*.png")
        assert np.array_equal(read_pixels(image.path), np.asarray(photograph(seed=seed)))


def test_copies_take_bounded_space_and_are_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = find_images(uploaded(folder, "memory://copies"))
    size = max(path.stat().st_size for path in folder.rglob("*.jpg"))
    monkeypatch.setattr(stored, "CACHED_BYTES", 2 * size)
    monkeypatch.setattr(stored, "_room", 0)
    monkeypatch.setattr(stored, "time", lambda: 2**40)  # no copy is in use
    for _ in range(3):
        for image in images:
            read = read_pixels(image.path)
            assert np.array_equal(read, read_pixels(folder / image.name))
        kept = sum(path.stat().st_size for path in stored.cache_folder().iterdir())
        assert kept <= 2 * size


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> None:
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(stored, "url_to_fs", missing)
    with pytest.raises(
        InputError, match=r"gs://bucket/photos needs a package .* pip install 'deepff\[gs\]'"
    ):
        find_images("gs://bucket/photos")
    with pytest.raises(InputError, match="Install gcsfs to access Google Storage"):
        find_images("other://bucket/photos")
