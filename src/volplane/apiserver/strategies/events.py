"""Events of v1: those with an eventTime are validated more strictly."""

from __future__ import annotations

from volplane.api.core import Event
from volplane.api.errors import Causes, invalid, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

_LIMITS = (
    ("reporting_instance", "reportingInstance", 128),
    ("action", "action", 128),
    ("reason", "reason", 128),
)
MESSAGE_LENGTH = 1024


class EventStrategy(Strategy[Event]):
    def validate_create(self, call: ApiCall, obj: Event) -> Causes:
        return validate_event(obj, "reportingComponent")

    def validate_update(self, call: ApiCall, old: Event, new: Event) -> Causes:
        return validate_event(new, "reportingComponent")


def validate_event(event: Event, reporter: str) -> Causes:
    """Validate an event of either API version; `reporter` is this version's name of `reportingComponent`."""
    yield from _check_namespace(event)
    if event.event_time:
        yield from _check_new_style(event, reporter)


def _check_namespace(event: Event) -> Causes:
    """An event is in the namespace of its object; for cluster-scoped objects, in `default`."""
    here, subject = event.metadata.namespace, event.involved_object.namespace
    if event.event_time:
        fits = bool(subject) or here in ("default", "kube-system")
    else:
        fits = here == subject if subject else here in ("", "default")
    if not fits:
        yield invalid("involvedObject.namespace", subject, "does not match event.namespace")


def _check_new_style(event: Event, reporter: str) -> Causes:
    found = checks.present(reporter, event.reporting_component)
    found += checks.qualified_name(reporter, event.reporting_component)
    for attribute, name, limit in _LIMITS:
        value = getattr(event, attribute)
        if not value:
            found.append(required_value(name))
        elif len(value) > limit:
            found.append(invalid(name, "", f"can have at most {limit} characters"))
    if len(event.message) > MESSAGE_LENGTH:
        found.append(invalid("message", "", f"can have at most {MESSAGE_LENGTH} characters"))
    yield from found
