"""``python -m deepff`` is the command ``deepff``."""

from deepff.cli.main import app

app(prog_name="deepff")
