"""coordination.k8s.io/v1: Lease."""

from volplane.api.meta import Resource
from volplane.api.object import MicroTime, Object


class LeaseSpec(Object):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Resource):
    spec: LeaseSpec = LeaseSpec()
