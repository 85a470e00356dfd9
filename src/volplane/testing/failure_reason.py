"""Why an object in the cluster under test waits, from `volplane explain`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import APIError
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeSnapshot
from volplane.client.client import Client
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.cluster_state import ClusterState
from volplane.explain.resolve import ExplainTarget, explain
from volplane.explain.result import ExplainResult, StepState
from volplane.testing.cleanup import NAMESPACE

log = logging.getLogger(__name__)

WAIT_TIMEOUT = 10.0  # seconds; then the report has no reason
KINDS: tuple[type[Resource], ...] = (Pod, PersistentVolumeClaim, VolumeSnapshot)


async def find_reason(client: Client, created_names: Callable[[type[Resource]], Collection[str]]) -> str:
    """The first object of the case that waits, and its reason; "" if none waits."""
    caches = SnapshotCaches(client.transport, namespace=NAMESPACE)
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            for kind in KINDS:
                for name in sorted(created_names(kind)):
                    obj = await client.find(kind, name, NAMESPACE)
                    answer = obj and await explain(
                        ClusterState(caches), ExplainTarget(kind, name, NAMESPACE), obj
                    )
                    if answer and answer.waits:
                        return _reason_for(answer)
    except (APIError, TimeoutError):
        pass  # the cluster itself hangs, and its calls are in the report
    except Exception:  # a bug in explain must not lose the report
        log.exception("cannot explain what the cluster waits for")
    finally:
        await caches.close()
    return ""


def _reason_for(answer: ExplainResult) -> str:
    details = [detail for step in answer.steps if step.state is StepState.WAITS for detail in step.details]
    return "; ".join([f"{answer.subject} waits: {answer.answer}", *details, *answer.advice])
