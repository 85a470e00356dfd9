"""Generate the message modules beside their `.proto` files."""

from __future__ import annotations

import sys
from pathlib import Path

from volplane.base.protoc import generate

if __name__ == "__main__":
    sys.exit(generate(Path(__file__).parent))
