"""Generate the message modules beside `.proto` files (needs grpcio-tools)."""

from __future__ import annotations

from pathlib import Path

SOURCE_ROOT = Path(__file__).parents[2]


def generate(directory: Path) -> int:
    """Generate the modules of all `.proto` files of a package; returns protoc's exit code."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # a development tool, absent at run time

    files = sorted(str(path) for path in directory.glob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    paths = [f"-I{SOURCE_ROOT}", f"-I{well_known}"]
    return int(
        protoc.main(["protoc", *paths, f"--python_out={SOURCE_ROOT}", f"--pyi_out={SOURCE_ROOT}", *files])
    )
