"""A test case, and the exceptions that fail or skip it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct

SPEC = "CSI"
KUBERNETES = "Kubernetes"


class CaseFailure(AssertionError):
    """The driver violates a requirement; `section` if it is another one than the case's."""

    def __init__(self, what: str, *, section: str = "") -> None:
        super().__init__(what)
        self.section = section


class NotSupported(Exception):
    """The driver does not support this: the case is skipped."""


class Case(Struct, frozen=True):
    name: str  # "attach/one node only"
    section: str  # "CSI: ControllerPublishVolume Errors", a heading of the specification
    requirement: str  # in one or two sentences
    run: Callable[[Any], Awaitable[None]]
    needs: tuple[str, ...] = ()  # names for `DriverCapabilities.has`
    needs_cluster: bool = False  # runs in a cluster
    needs_processes: bool = False  # runs in a cluster of several processes, which it can kill


CaseBody = Callable[[Any], Awaitable[None]]


class CaseTable:
    """The cases of one module, in the order of their definition."""

    def __init__(self, *, needs_cluster: bool = False, needs_processes: bool = False) -> None:
        self._cases: list[Case] = []
        self._whole, self._apart = needs_cluster, needs_processes

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __call__(
        self, name: str, section: str, requirement: str, *needs: str
    ) -> Callable[[CaseBody], CaseBody]:
        def declare(body: CaseBody) -> CaseBody:
            self.add(name, section, requirement, body, *needs)
            return body

        return declare

    def add(self, name: str, section: str, requirement: str, body: CaseBody, *needs: str) -> None:
        title = section if section.startswith(KUBERNETES) else f"{SPEC}: {section}"
        self._cases.append(Case(name, title, requirement, body, needs, self._whole, self._apart))


def require(holds: object, what: str, *, section: str = "") -> None:
    """Raise CaseFailure unless `holds`."""
    if not holds:
        raise CaseFailure(what, section=section and f"{SPEC}: {section}")
