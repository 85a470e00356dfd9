"""events.k8s.io/v1: the events of v1 with other field names and stricter validation.

Events are stored once, in the form of v1. Both APIs list, watch and delete the same objects; an event written
through one is read through the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from volplane.api import codec, core, events
from volplane.api.errors import Causes, invalid, required_value
from volplane.api.kinds import Kind
from volplane.apiserver.object_access import StructAccess
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.events import validate_event
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.store import StoreRecord

# Field in events.k8s.io → field in v1; the others have the same name.
_NAMES: Mapping[str, str] = {
    "regarding": "involved_object",
    "note": "message",
    "reporting_controller": "reporting_component",
    "deprecated_source": "source",
    "deprecated_first_timestamp": "first_timestamp",
    "deprecated_last_timestamp": "last_timestamp",
    "deprecated_count": "count",
}
_FIELDS = tuple((f.name, _NAMES.get(f.name, f.name)) for f in structs.fields(events.Event))
_TYPES = ("Normal", "Warning")
_DEPRECATED_FIELDS = ("first_timestamp", "last_timestamp", "count", "source")  # only v1 may set them
_WIRE = {f.name: f.encode_name for f in structs.fields(core.Event)} | {
    "reporting_component": "reportingController"
}


class EventsAccess(StructAccess):
    """Converts between the stored form, which is that of v1, and events.k8s.io."""

    def load(self, value: bytes, revision: int) -> events.Event:
        return to_events_event(codec.load(core.Event, value, revision))

    def encode_stored(self, obj: events.Event) -> bytes:
        return codec.encode_stored(to_core_event(obj))

    def to_wire(self, value: bytes, revision: int) -> bytes:
        made = self.load(value, revision)
        if not revision:
            made = structs.replace(made, metadata=structs.replace(made.metadata, resource_version=""))
        return codec.encode(made)

    def to_list_items(self, records: Sequence[StoreRecord]) -> list[bytes]:
        return [self.without_head(self.to_wire(record.value, record.revision)) for record in records]


def to_events_event(event: core.Event) -> events.Event:
    values: dict[str, Any] = {new: getattr(event, old) for new, old in _FIELDS}
    if event.series is not None:
        values["series"] = events.EventSeries(event.series.count, event.series.last_observed_time)
    return events.Event(**values)


def to_core_event(event: events.Event) -> core.Event:
    values: dict[str, Any] = {old: getattr(event, new) for new, old in _FIELDS}
    if event.series is not None:
        values["series"] = core.EventSeries(event.series.count, event.series.last_observed_time)
    return core.Event(**values)


class EventsK8sIoStrategy(Strategy[events.Event]):
    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.access = EventsAccess(kind)

    def validate_create(self, call: ApiCall, obj: events.Event) -> Causes:
        event = to_core_event(obj)
        yield from validate_event(event, "reportingController")
        yield from _series(event)
        yield from checks.present("eventTime", event.event_time)
        if event.type not in _TYPES:
            yield invalid("type", "", f"has invalid value: {event.type}")
        empty = core.Event()
        for attribute in _DEPRECATED_FIELDS:
            if getattr(event, attribute) != getattr(empty, attribute):
                yield invalid(_WIRE[attribute], "", "needs to be unset")

    def validate_update(self, call: ApiCall, old: events.Event, new: events.Event) -> Causes:
        """Only `series` may change."""
        before, after = to_core_event(old), to_core_event(new)
        yield from validate_event(after, "reportingController")
        if after.series != before.series:
            yield from _series(after)
        for attribute, name in _WIRE.items():
            if attribute not in ("metadata", "series"):
                yield from checks.immutable_field(name, getattr(after, attribute), getattr(before, attribute))


def _series(event: core.Event) -> Causes:
    series, found = event.series, []
    if series is not None and series.count < 2:
        found.append(invalid("series.count", "", "should be at least 2"))
    if series is not None and not series.last_observed_time:
        found.append(required_value("series.lastObservedTime"))
    yield from found
