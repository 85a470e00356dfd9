"""Errors of calls to FlexVolume drivers."""


class FlexCallError(Exception):
    """A call failed; the text says why."""


class FlexExecutableBusy(FlexCallError):
    """The executable is open for writing: it is being copied into place."""


class FlexNotSupported(FlexCallError):
    """The driver does not implement the command."""

    def __init__(self) -> None:
        super().__init__("Not supported")
