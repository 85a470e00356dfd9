"""After a restart: rebuild the records of a pod's containers from what runs and from its status."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping

from msgspec import structs

from volplane.api.core import Container, ContainerStatus, Pod
from volplane.base.files import atomic_write, set_aside
from volplane.node.containers.base import KILLED, ContainerRunState
from volplane.node.pods.records import ContainerAttempt, ContainerRecord, all_containers
from volplane.node.pods.runtimes import Runtimes, make_attempt, parse_container_id

log = logging.getLogger(__name__)

MARKER = "suspended"
STATUS_UNKNOWN_MESSAGE = "The container could not be located when the node started again"


def recover_records(
    pod: Pod,
    states: Iterable[ContainerRunState],
    interrupted: Mapping[str, int],
    runtimes: Runtimes,
    now: str,
) -> dict[str, ContainerRecord]:
    """The records by container. `interrupted`: attempts that the node itself has stopped, by container."""
    found: dict[str, list[ContainerAttempt]] = {}
    containers = {c.name: c for c in all_containers(pod)}
    for state in states:
        name = parse_container_id(state.id)[1]
        if name in containers:
            found.setdefault(name, []).append(make_attempt(state, runtimes.scheme(containers[name])))
    status = pod.status
    statuses = (
        *status.init_container_statuses,
        *status.container_statuses,
        *status.ephemeral_container_statuses,
    )
    reported = {s.name: s for s in statuses}
    records = {}
    for name in containers:
        record = _recover_record(found.get(name, []), reported.get(name), now)
        if record is not None:
            record = _restore_probe_results(record, containers[name], reported.get(name))
            records[name] = _mark_interrupted(record, interrupted.get(name))
    return records


def _recover_record(
    attempts: list[ContainerAttempt], reported: ContainerStatus | None, now: str
) -> ContainerRecord | None:
    known = sorted(attempts, key=lambda a: a.number)
    last = _attempt_from_status(reported, now)
    if last is not None and (not known or last.number > known[-1].number):
        known.append(last)
    if not known:
        return None
    previous = known[-2] if len(known) > 1 else None
    return ContainerRecord(
        current=known[-1], previous=previous, ready=known[-1].running, started=known[-1].running
    )


def _restore_probe_results(
    record: ContainerRecord, container: Container, reported: ContainerStatus | None
) -> ContainerRecord:
    """Take over the reported results of probes until they run again."""
    current = record.current
    if current is None or not current.running:
        return record
    same = reported is not None and reported.restart_count == current.number
    status = reported if same and reported and reported.state.running is not None else ContainerStatus()
    started = container.startup_probe is None or bool(status.started)
    ready = started and (container.readiness_probe is None or status.ready)
    return structs.replace(record, started=started, ready=ready)


def _attempt_from_status(status: ContainerStatus | None, now: str) -> ContainerAttempt | None:
    """The attempt in the reported status. If it was running there, its exit code is unknown."""
    if status is None or not status.container_id:
        return None
    ended = status.state.terminated or (status.state.waiting and status.last_state.terminated)
    if ended:
        return ContainerAttempt(
            status.restart_count,
            status.container_id,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            exit_code=ended.exit_code,
            reason=ended.reason,
            message=ended.message,
            image=status.image,
            image_id=status.image_id,
        )
    running = status.state.running
    return ContainerAttempt(
        status.restart_count,
        status.container_id,
        started_at=running.started_at if running else "",
        finished_at=now,
        exit_code=KILLED,
        reason="ContainerStatusUnknown",
        message=STATUS_UNKNOWN_MESSAGE,
        image=status.image,
        image_id=status.image_id,
    )


def _mark_interrupted(record: ContainerRecord, attempt: int | None) -> ContainerRecord:
    current = record.current
    if current is None or current.running or current.number != attempt:
        return record
    return structs.replace(record, current=structs.replace(current, interrupted=True))


# When the node stops, it first records which containers it stops itself.


def read_markers(directory: str) -> dict[str, dict[str, int]]:
    """The markers of all pods below this directory, written by an earlier process."""
    found = {uid: _read_marker(os.path.join(directory, uid, MARKER)) for uid in os.listdir(directory)}
    return {uid: marker for uid, marker in found.items() if marker}


def _read_marker(path: str) -> dict[str, int]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        set_aside(path, error)
        return {}
    # Without a marker, containers count as exited by themselves, and the restart policy applies.
    known = found.items() if isinstance(found, dict) else ()
    return {name: number for name, number in known if isinstance(number, int)}


def write_marker(path: str, records: Mapping[str, ContainerRecord]) -> None:
    stopped = {name: r.current.number for name, r in records.items() if r.current and r.running}
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_write(path, json.dumps(stopped).encode())
    except OSError as error:  # stop the pod anyway: leaving its volumes mounted would be worse
        log.warning("cannot write %s; its containers will count as exited by themselves: %s", path, error)
