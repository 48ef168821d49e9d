"""The one error that a user's input can raise."""


class InputError(ValueError):
    """Something the user gave is wrong; the message is one sentence saying what would be right.

    The command line prints it without a traceback and exits with status 2.
    """
