"""What one page shows of a result, apart from the labels."""

from dataclasses import dataclass

LOOKS = ("masks", "heat maps", "photos")


@dataclass
class View:
    """What one page shows.

    Attributes
    ----------
    revision : int
        Of the labels that are shown.
    position : int
        The image under the keyboard, in the order of :meth:`deepff.app.pictures.Pictures.order`.
    moves : int
        Grows when the server changes the position, so that the browser follows.
    look : str
        One of `LOOKS`.
    tab : "images", "factors" or "export"
    """

    revision: int = -1
    position: int = 0
    moves: int = 0
    look: str = LOOKS[0]
    tab: str = "images"

    def go(self, position: int) -> None:
        """Show another image, as the server's own doing."""
        self.position = position
        self.moves += 1
