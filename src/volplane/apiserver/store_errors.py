"""Convert store errors to API errors, for HTTP and in-process calls alike."""

from __future__ import annotations

from types import TracebackType

from volplane.api.errors import APIError, InsufficientStorage, InternalError, Timeout, TooLarge, Unavailable
from volplane.store import RecordTooLarge, StoreClosed, StoreError, StoreFailed, StoreFull, WriteUncertain


def to_api_error(error: StoreError) -> APIError:
    match error:
        case StoreClosed():
            return Unavailable("the server is shutting down")
        case RecordTooLarge():
            return TooLarge(f"Request entity too large: {error}")
        case StoreFull():
            return InsufficientStorage(str(error))
        case WriteUncertain():
            return Timeout(f"Timeout: the request may or may not have taken effect: {error}")
        case StoreFailed():
            return InternalError.because(error)
        case _:
            return InternalError.because(type(error).__name__)


class _AsApiErrors:
    """`with AS_API_ERRORS:` raises store errors as API errors."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError):
            raise to_api_error(error) from error


AS_API_ERRORS = _AsApiErrors()
