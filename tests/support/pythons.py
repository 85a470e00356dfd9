"""The interpreters that tests use: the one that runs them, or one of each version (VOLPLANE_PYTHONS=all)."""

from __future__ import annotations

import os

from tools.archives import PYTHONS
from tools.pythons import RUNNING

WANTED = PYTHONS if os.environ.get("VOLPLANE_PYTHONS") == "all" else (RUNNING,)
