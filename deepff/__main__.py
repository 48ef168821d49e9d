"""``python -m deepff`` is the command ``deepff``."""

from deepff.cli import app

app(prog_name="deepff")
