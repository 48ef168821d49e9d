"""`deepff layers --layer` says where a layer's cells look."""

from typer.testing import CliRunner

from deepff.cli.main import app


def test_of_the_embedded_network_cells_are_drawn_where_they_lie():
    outcome = CliRunner().invoke(app, ["layers", "efficientnet_lite0", "--layer", "bn2"])
    assert outcome.exit_code == 0, outcome.output
    header, found = outcome.stdout.splitlines()
    assert header.split()[-3:] == ["is", "drawn", "at"]
    assert found.split()[:3] == ["bn2", "1280", "32"]
    # Stride 32, so the first cell covers the pixels 0 to 32.
    assert found.endswith("16.0, 16.0") and found.count("±") == 2
