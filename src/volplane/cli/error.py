"""The error of a verb: a message that says what is wrong and what to do."""


class CommandError(Exception):
    """Shown to the user without a traceback; exit code 1."""
