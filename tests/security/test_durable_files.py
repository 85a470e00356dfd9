"""Files that a restart reads are synced before their writer continues, as its system calls show.

The order matters: the content before the name, and the name before the return.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WRITERS = {
    "base": "from volplane.base.files import atomic_write; atomic_write(path, b'x', durable=True)",
    "keys": (
        "from pathlib import Path; from volplane.apiserver.auth.certificates import write_private; "
        "write_private(Path(path), b'x')"
    ),
    "cluster": (
        "from pathlib import Path; from volplane.cluster.data_directory import DataDirectory, SavedCluster; "
        "DataDirectory(Path(path).parent).write(Path(path), SavedCluster())"
    ),
    "place": (
        "import os; from volplane.base import directory_identity as identity; "
        "identity.NAME = os.path.basename(path); identity.claim_directory(os.path.dirname(path), print)"
    ),
}


@pytest.mark.peer("strace")
@pytest.mark.parametrize("writer", WRITERS)
def test_content_is_synced_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, writer: str
) -> None:
    path, trace = tmp_path / "d" / "file.json", tmp_path / "trace"
    path.parent.mkdir()
    command = [
        "strace",
        "-f",
        "-y",
        "-o",
        str(trace),
        "-e",
        "trace=fsync,fdatasync,rename,renameat,renameat2",
    ]
    code = f"path = {str(path)!r}; {WRITERS[writer]}"
    subprocess.run([*command, sys.executable, "-c", code], check=True)
    assert path.exists()
    seen = [line for line in trace.read_text().splitlines() if str(path.parent) in line]
    found = [re.sub(r"^\d+ +", "", line) for line in seen]
    assert len(found) == 3, found
    content, name, directory = found
    assert re.match(rf"f(data)?sync\(\d+<{path.parent}/[^>]+>\) += 0", content)
    assert name.startswith("rename")
    assert f'"{path}"' in name
    assert re.match(rf"fsync\(\d+<{path.parent}>\) += 0", directory)
