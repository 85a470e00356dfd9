"""The public names of `volplane.sdk` and `volplane.testing`, one a line, with their parameters.

`python -m tests.docs.public_names` writes public_names.txt, which the tests compare with the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from volplane import sdk
from volplane.testing import object_handles, plugin, short_names, sync_cluster

GOLDEN = Path(__file__).with_suffix(".txt")
HOST_NAMES = ("call", "close", "run")  # the rest of Host is for our own drivers
TESTING_CLASSES: tuple[type, ...] = (
    sync_cluster.SyncCluster,
    sync_cluster.InjectedFault,
    sync_cluster.HeldCall,
    sync_cluster.WaitTimeout,
    object_handles.ClaimHandle,
    object_handles.SnapshotHandle,
    object_handles.RunningPod,
    object_handles.PodCommandFailed,
)


def list_public_names() -> Iterator[str]:
    for name in sdk.__all__:
        yield from _members(f"volplane.sdk.{name}", getattr(sdk, name))
    for name in (
        "volplane_driver",
        "volplane_settings",
        "volplane_cluster",
        "volplane_claim",
        "volplane_pod",
    ):
        assert hasattr(plugin, name)
        yield f"fixture {name}"
    for name, new_name in plugin.NEW_NAMES.items():
        assert hasattr(short_names, name)
        yield f"fixture {name} with {plugin.SHORT_NAMES}, for {new_name}"
    for option in plugin._OPTIONS:
        yield f"option --{option.replace('_', '-')}"
    for each in TESTING_CLASSES:
        yield from _members(f"{each.__module__}.{each.__name__}", each)


def _members(path: str, value: object) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield path
        if path != "volplane.sdk.v1":  # generated from the CSI specification
            yield from (f"{path}.{name}" for name, each in vars(value).items() if _is_own_class(value, each))
    elif inspect.isclass(value):
        yield path
        for name in sorted(dir(value)):
            if value is sdk.Host and name not in HOST_NAMES:
                continue
            if not name.startswith("_") and not hasattr(BaseException, name):
                yield f"{path}.{name}{_parameters(getattr(value, name))}"
    else:
        yield f"{path}{_parameters(value)}"


def _is_own_class(module: ModuleType, value: object) -> bool:
    return (
        inspect.isclass(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")
    )


def _parameters(value: object) -> str:
    if not callable(value):
        return ""
    parameters = inspect.signature(value).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}=…" for p in parameters if p.name != "self"]
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for line in list_public_names()))
