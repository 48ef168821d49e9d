"""What the app's server gives away, and to whom; and what the command says."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from planted import planted
from typer.testing import CliRunner

from deepff.app.label_file import FILE
from deepff.cli.main import app
from deepff.images.image_files import find_images

pytest.importorskip("gradio")
testing = pytest.importorskip("starlette.testclient")

from deepff.app.server import web_app  # noqa: E402
from deepff.app.workspace import Workspace  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    planted(folder).save(folder / "result")
    (folder / "secret.zip").write_text("the content")
    return folder / "result"


@pytest.fixture(scope="module")
def client(folder: Path) -> testing.TestClient:
    workspace = Workspace(folder)
    workspace.open()
    return testing.TestClient(web_app(workspace), base_url="http://127.0.0.1:7860")


def test_the_page_is_given_and_names_no_other_server(client: testing.TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "deepff label" in answer.text
    assert "fonts.googleapis" not in answer.text and "cdnjs" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file={other}",
        "/gradio_api/file={result}/manifest.json",
        "/gradio_api/file/{other}",
        "/gradio_api/file=../../secret.zip",
        "/gradio_api/%66ile={other}",
        "//gradio_api/file={other}",
        "/file={other}",
        "/static/{other}",
        "/static/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..{other}",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..{other}",
        "/svelte/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..{other}",
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/download/..%2f..%2fsecret.zip",
        "/download/secret.zip",
        "/download/coco.zip",
    ],
)
def test_no_file_is_given_but_a_finished_export(
    client: testing.TestClient, folder: Path, path: str
) -> None:
    other = folder.parent / "secret.zip"
    answer = client.get(path.format(other=other, result=folder))
    assert answer.status_code in (400, 403, 404)
    assert "the content" not in answer.text
    for system in ("/etc/passwd", "/gradio_api/file=/etc/passwd"):
        assert client.get(system).status_code in (403, 404)


def test_nothing_can_be_left_on_the_server(client: testing.TestClient) -> None:
    assert client.post("/gradio_api/upload", files={"files": b"x"}).status_code == 403


def test_a_finished_export_is_given(client: testing.TestClient, folder: Path) -> None:
    (folder / "export").mkdir()
    (folder / "export" / "voc.zip").write_bytes(b"PK")
    assert client.get("/download/voc.zip").content == b"PK"


def test_a_foreign_name_for_this_machine_is_refused(client: testing.TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "localhost:7860"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:1", "null"])
def test_other_pages_of_this_machine_may_not_read(client: testing.TestClient, origin: str) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    answers = [
        client.get(path, headers={"origin": origin}) for path in ("/", "/config", "/download/a.zip")
    ]
    for path in ("/gradio_api/queue/join", "/gradio_api/queue/data"):
        answers.append(client.options(path, headers={"origin": origin, **asked}))
        answers.append(client.post(path, json={}, headers={"origin": origin}))
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert client.get("/", headers={"origin": "http://127.0.0.1:7860"}).status_code == 200


def test_a_proxys_name_and_path_get_in_when_they_are_allowed(folder: Path) -> None:
    workspace = Workspace(folder)
    workspace.open()
    app = web_app(workspace, allowed_hosts=["hub.example"], root_path="/user/ann")
    client = testing.TestClient(app, base_url="http://127.0.0.1:7860")
    answer = client.get("/", headers={"host": "hub.example"})
    assert answer.status_code == 200
    assert "/user/ann" in answer.text
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def run(*arguments: str | Path) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, ["label", "--no-browser", *map(str, arguments)])
    return outcome.exit_code, outcome.stderr


def test_the_command_refuses_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    photos = folder.parent
    code, said = run(tmp_path / "nothing")
    assert code == 2 and "give a folder, an image file or a glob" in said
    code, said = run(folder, "-k", "3")
    assert code == 2 and "holds a result already; -k and --out are for a new one" in said
    code, said = run(photos, "--out", photos)
    assert code == 2 and "name a new or empty folder" in said
    (tmp_path / "more.png").touch()
    code, said = run(tmp_path, "--out", folder)
    assert code == 2 and "holds a result of other images; name another folder with --out" in said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = run(folder, "--port", str(port))
    assert code == 2 and f"cannot listen on 127.0.0.1, port {port}" in said
    (folder / FILE).write_text("{")
    code, said = run(folder)
    (folder / FILE).unlink()
    assert code == 2 and "cannot be read as JSON" in said


def test_without_gradio_the_command_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gradio.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "deepff", "label", str(folder), "--no-browser"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "deepff: error: the app needs Gradio: pip install 'deepff[app]'\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_new_result_is_computed_on_the_device_that_was_asked_for(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    workspace = Workspace(tmp_path / "result")
    workspace.discover(find_images(tmp_path), [1], "cuda")
    deadline = time.monotonic() + 60
    while workspace.error is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workspace.error is not None and "no device 'cuda'" in workspace.error


def test_gradio_is_imported_by_the_app_alone() -> None:
    check = (
        "import sys, deepff.cli.main, deepff.app.label_file, deepff.app.pictures; "
        "assert not {'gradio', 'uvicorn', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
