"""Log lines of a moment: from files of roles and containers, and from this process."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from volplane.dashboard.log_lines import AROUND, SHOWN, LogReader

AT = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)


def line(text: str, *, milliseconds: float = 0) -> str:
    return f"{AT + timedelta(milliseconds=milliseconds):%Y-%m-%dT%H:%M:%S.%f}Z INFO  attacher: {text}"


async def find(reader: LogReader, *names: str) -> list[str]:
    return [found.text for found in await reader.find(AT, AT + timedelta(milliseconds=10), names)]


async def test_lines_of_the_time_that_mention_a_name_are_found(tmp_path: Path) -> None:
    early = -1000 * AROUND.total_seconds() - 1
    lines = [
        line("before data", milliseconds=early),
        line("begin data"),
        line("other"),
        "Traceback of data",
        line("end data", milliseconds=9),
        line("after data", milliseconds=20),
    ]
    (tmp_path / "node-worker-1.log").write_text("\n".join(lines) + "\n")
    reader = LogReader([(tmp_path, "*.log")])
    assert await find(reader, "data") == ["INFO  attacher: begin data", "INFO  attacher: end data"]
    assert await find(reader, "nothing") == []
    (found, _) = await reader.find(AT, AT + timedelta(milliseconds=10), ["data"])
    assert (found.at, found.role) == (AT, "node-worker-1")


async def test_lines_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "up.log"
    file.write_text("\n".join(line(f"data {number}") for number in range(SHOWN + 2)) + "\n")
    lines = await find(LogReader([(tmp_path, "*.log")]), "data")
    assert lines[-2:] == [
        f"INFO  attacher: data {SHOWN - 1}",
        "(2 more lines of this moment are not shown)",
    ]
    file.write_text("\n".join(line(f"data {number}") for number in range(SHOWN)) + "\n")
    assert len(await find(LogReader([(tmp_path, "*.log")]), "data")) == SHOWN


async def test_a_containers_file_has_the_name_of_the_container(tmp_path: Path) -> None:
    place = tmp_path / "1" / "logs" / "kube-system_pod_uid" / "csi-attacher"
    place.mkdir(parents=True)
    (place / "0.log").write_text(f"2026-05-04T03:02:01.500001000Z stderr F {line('Attached data')}\n")
    reader = LogReader([(tmp_path, "*/logs/*/*/*.log")])
    (found,) = await reader.find(AT, AT, ["data"])
    assert (found.text, found.role) == ("INFO  attacher: Attached data", "csi-attacher")


async def test_files_that_were_not_written_since_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "up.log"
    file.write_text(line("data"))
    os.utime(file, (0, AT.timestamp() - 60))
    assert await find(LogReader([(tmp_path, "*.log")]), "data") == []


async def test_this_process_is_heard_while_the_reader_is_open() -> None:
    logger = logging.getLogger("volplane.sidecars.attacher")
    reader = LogReader(has_own=True)
    reader.open()
    try:
        began = datetime.now(UTC)
        logger.warning("Attached data")
        (found,) = await reader.find(began, datetime.now(UTC), ["data"])
        assert found.text == "WARNING attacher: Attached data"
    finally:
        reader.close()
    assert not any(type(handler).__name__ == "LogRing" for handler in logging.getLogger("volplane").handlers)
