"""The rules of the kinds: admission, preparation, validation. One file for each kind or group of kinds.

The row of a kind names its class (`Kind.strategy`); a kind without rules of its own has the base `Strategy`.
Everything here is a pure function of objects, except admission, which reads other objects through
`call.reader`.
"""

from __future__ import annotations

from importlib import import_module

from volplane.api.kind import Kind
from volplane.apiserver.strategy import AnyStrategy, Strategy


def of(kind: Kind) -> AnyStrategy:
    """The strategy of a kind."""
    if not kind.strategy:
        return Strategy(kind)
    module, _, name = kind.strategy.rpartition(".")
    strategy: AnyStrategy = getattr(import_module(f"volplane.apiserver.{module}"), name)(kind)
    return strategy
