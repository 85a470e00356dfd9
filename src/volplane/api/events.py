"""events.k8s.io/v1: Event with newer field names."""

from volplane.api.core import EventSource, ObjectReference
from volplane.api.meta import Resource
from volplane.api.object import MicroTime, Object, Time, no_omitempty


class EventSeries(Object):
    count: int = no_omitempty(factory=int)
    last_observed_time: MicroTime = ""


class Event(Resource):
    event_time: MicroTime = ""
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""
    deprecated_source: EventSource = EventSource()
    deprecated_first_timestamp: Time = ""
    deprecated_last_timestamp: Time = ""
    deprecated_count: int = 0
