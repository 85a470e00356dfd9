"""What a live page shows: a cluster, and where its roles report and record."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from volplane.base.trace import Trace
from volplane.client.transport import Transport


class ClusterSource(Struct, frozen=True):
    """One cluster, read with the rights of the transport's user. The creator closes the transport."""

    transport: Transport
    name: str  # as the page calls it
    namespace: str = ""  # followed alone where not all namespaces may be read
    sockets: Path | None = None  # directory of the roles' wait reports
    spans: Path | None = None  # directory where steps are recorded
    trace: Trace | None = None  # of the roles in this process, if their steps are not recorded on disk
    logs: tuple[tuple[Path, str], ...] = ()  # directories, each with a pattern of log files
    has_own_logs: bool = False  # whether roles run in this process
