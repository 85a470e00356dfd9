"""Generate the message modules beside their `.proto` files (needs grpcio-tools)."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    from grpc_tools import protoc  # type: ignore[import-untyped]  # a development tool, absent at run time

    here = Path(__file__).parent
    root = here.parents[3]
    files = sorted(str(path) for path in here.glob("*.proto"))
    return int(protoc.main(["protoc", f"-I{root}", f"--python_out={root}", f"--pyi_out={root}", *files]))


if __name__ == "__main__":
    sys.exit(main())
