"""The one error that a user's input can raise, and the one warning."""

import warnings


class InputError(ValueError):
    """Something the user gave is wrong; the message is one sentence saying what would be right.

    The command line prints it without a traceback and exits with status 2.

    Examples
    --------
    >>> import deepff
    >>> try:
    ...     deepff.discover("no_such_folder/")
    ... except deepff.InputError as error:
    ...     print(error)
    cannot find 'no_such_folder/': give a folder, an image file or a glob
    """


class InputWarning(UserWarning):
    """Something the user gave was taken otherwise than may be meant; one line on the command
    line."""


def warn_user(message: str, above: int = 1) -> None:
    """Give an `InputWarning` about the code that is so many calls above the caller."""
    warnings.warn(message, InputWarning, stacklevel=above + 2)


def first_line(error: BaseException) -> str:
    """An error's first line, without full stops, to be put inside a sentence."""
    # urllib wraps the reason in brackets.
    lines = str(getattr(error, "reason", error)).strip().splitlines()
    return lines[0].rstrip(".:").replace(". ", "; ") if lines else type(error).__name__
