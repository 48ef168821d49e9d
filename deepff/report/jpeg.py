"""The report's pictures as files."""

from pathlib import Path

from PIL import Image

from deepff.runtime.files import atomic_path

_QUALITY = 85


def save_jpeg(picture: Image.Image, path: Path) -> None:
    """Write a picture as JPEG, which has its name when it is whole."""
    with atomic_path(path) as temporary:
        picture.save(temporary, "JPEG", quality=_QUALITY)
