"""Replace the keys of a stopped cluster: its CA, certificates, tokens, and the keys of the disk service.

A start creates what is missing. So the old directory `pki` is renamed, which is one step, and then removed.
"""

from __future__ import annotations

import shutil

from msgspec import structs

from volplane.base import failpoint
from volplane.base.files import sync_directory
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory

OLD = "pki.old"


def discard_keys(layout: DataDirectory) -> None:
    """Remove all keys. The directory is locked. Raises UnusableDataDirectory."""
    directory, old = layout.directory / "pki", layout.directory / OLD
    try:
        shutil.rmtree(old, ignore_errors=True)  # of a rotation that was killed
        layout.save(structs.replace(layout.load_saved(), access_key="", secret_key=""))
        failpoint.hit("rotation:half")
        if directory.exists():
            directory.rename(old)
            sync_directory(str(layout.directory))
            failpoint.hit("rotation:renamed")
            shutil.rmtree(old)
        for path in (layout.kubeconfig, *layout.run.glob("*.kubeconfig")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UnusableDataDirectory(f"cannot replace the keys: {error}") from error
