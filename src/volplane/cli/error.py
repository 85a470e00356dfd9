"""What a verb raises when it cannot do what was asked: one line that says what is wrong and what to do."""


class CommandError(Exception):
    """Shown to the user without a traceback; exit code 1."""
