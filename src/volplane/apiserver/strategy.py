"""What one kind adds to the generic verbs: defaults, admission, preparation, validation.

The verbs run the hooks in this order and do everything that is the same for all kinds: object metadata (name,
uid, timestamps, labels, owner references, finalizers), generation, preconditions, the namespace's existence,
deletion, dry run.

    create:  defaults → admit_create → prepare_create → validate_create → store
    update:  defaults → admit_update → prepare_update → validate_update → store   (/status: *_status)
    delete:  admit_delete → grace → store

`strategies.of(kind)` gives the strategy of a kind; kinds without rules of their own get this base class.
Objects are frozen: each hook returns the object to continue with. Admission refuses by raising an exception
of `api.errors`; validation yields causes, so that all are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct, field, to_builtins

from volplane.api.autoscaling import Scale
from volplane.api.errors import Causes, invalid
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.apiserver.defaults import Defaulter, defaulter_of
from volplane.apiserver.missing_fields import missing_fields
from volplane.apiserver.object_access import ObjectAccess, access_for, path_reader
from volplane.apiserver.selectors import SelectorReader

if TYPE_CHECKING:
    from volplane.apiserver.tables.columns import TablePrinter  # its package imports the strategies

O = TypeVar("O")  # noqa: E741 - a Resource for built-in kinds, a dict for custom resources
R = TypeVar("R", bound=Resource)


class RequestUser(Struct, frozen=True):
    """The user of a request. Members of the group `system:masters` may do everything."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReader(Protocol):
    """How admission reads other objects: the latest committed state."""

    async def get(self, type: type[R], name: str, namespace: str = "") -> R | None: ...

    async def list(self, type: type[R], namespace: str = "") -> Sequence[R]: ...


def _allow_everything(verb: str) -> None:
    """Calls inside the server are not authorized."""


class ApiCall(Struct):
    """A request, as the hooks see it."""

    verb: str  # create, get, list, watch, update, patch, delete, deletecollection
    kind: Kind
    user: RequestUser
    reader: ObjectReader
    now: datetime
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    manager: str = ""  # fieldManager, or from the User-Agent; "": created objects have no field manager
    size: int = 0  # bytes of the request's body
    check_access: Callable[[str], None] = (
        _allow_everything  # raises Forbidden if the user may not do this verb on the same object
    )
    warnings: list[str] = field(default_factory=list)  # hooks append; each becomes a Warning header
    annotations: dict[str, str] = field(default_factory=dict)  # hooks add; they go to the audit log
    releases: list[Callable[[], None]] = field(default_factory=list)  # admission adds; called after the write

    def release(self) -> None:
        """Give back what admission reserved for a write that is stored now, or has failed."""
        while self.releases:
            self.releases.pop()()


class ScaleAccess(Protocol):
    """/scale of a custom kind."""

    def view(self, obj: Any) -> Scale: ...

    def current(self, obj: Any) -> Scale:
        """The Scale that a patch is applied to."""
        ...

    def set(self, obj: Any, replicas: int) -> Any: ...


class Strategy(Generic[O]):
    """The behaviour of a kind without rules of its own."""

    # Of a custom kind:
    schema: Mapping[str, Any] | None = None  # its structural schema
    printer: TablePrinter | None = None  # its table columns
    scaling: ScaleAccess | None = None  # where its replicas are

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.warnings: tuple[str, ...] = (kind.warning,) if kind.warning else ()  # in every response
        self.access: ObjectAccess[O] = access_for(kind)
        self._has_status = kind.has_status

    @cached_property
    def _default(self) -> Defaulter:  # compiled on first use, not at start
        return defaulter_of(self.kind.type)

    @cached_property
    def _immutable(self) -> list[tuple[str, Callable[[O], Any]]]:
        return [(path, path_reader(self.kind.type, path)) for path in self.kind.immutable]

    def selector_reader(self) -> SelectorReader:
        """Reads labels and selectable fields of stored objects."""
        return SelectorReader(self.kind.selectable)

    # Defaults

    def defaults(self, obj: O, old: O | None = None) -> O:
        """Set the fields that the writer left out, on create, update and patch; idempotent.

        `old`: the stored object of an update. Members that the update left alone keep the defaults with which
        they were stored, also if an earlier release stored them and knew fewer.
        """
        changed: O = self._default(obj, old)
        return changed

    # Admission: may read other objects, may raise

    async def admit_create(self, call: ApiCall, obj: O) -> O:
        return obj

    async def admit_update(self, call: ApiCall, old: O, new: O) -> O:
        """Also called for /status and other subresources that write this kind: see `call.subresource`."""
        return new

    async def admit_delete(self, call: ApiCall, obj: O) -> None:
        return None

    # Preparation: which parts of the request's object are used

    def prepare_create(self, call: ApiCall, obj: O) -> O:
        """Clear the status; a kind that starts in a phase sets it here."""
        if self.kind.inactive:
            call.warnings.append(f"{self.kind.kind} is stored but {self.kind.inactive}")
        return self.access.without_status(obj) if self._has_status else obj

    def prepare_update(self, call: ApiCall, old: O, new: O) -> O:
        """Keep the old status: the main endpoint does not write it."""
        return self.access.with_status_of(new, old) if self._has_status else new

    def prepare_status(self, call: ApiCall, old: O, new: O) -> O:
        """/status writes status, and metadata unless `kind.status_metadata` is False."""
        return self.access.only_status_of(new, old, metadata=self.kind.status_metadata)

    # Validation

    def validate_name(self, name: str, *, prefix: bool = False) -> list[str]:
        """The problems of a name, in the API's words; `prefix`: it is a generateName."""
        return self.kind.check_name(name, prefix)

    def validate_create(self, call: ApiCall, obj: O) -> Causes:
        """A kind without rules of its own has those of the published schema."""
        return missing_fields(obj) if self.kind.message else ()

    def validate_update(self, call: ApiCall, old: O, new: O) -> Causes:
        """A changed object is validated like a new one, and the kind's immutable fields must not change."""
        yield from self.validate_create(call, new)
        for path, read in self._immutable:
            if read(new) != read(old):
                yield invalid(path, to_builtins(read(new)), "field is immutable")

    def validate_status(self, call: ApiCall, old: O, new: O) -> Causes:
        return ()

    # Generation

    def spec_changed(self, old: O, new: O) -> bool:
        """Does this update increase the generation? Only for kinds that have one."""
        return self.access.differs(old, new, except_for=("metadata", "status"))

    # Deletion

    def grace(self, call: ApiCall, obj: O, requested: int | None) -> int:
        """Seconds until the object is removed (0: at once, or when its finalizers are gone)."""
        return 0

    def mark_deleted(self, call: ApiCall, obj: O) -> O:
        """The object to store while its deletion waits (a namespace becomes Terminating)."""
        return obj

    def is_removable(self, obj: O) -> bool:
        """May the object be removed when its finalizers are gone? A namespace waits for spec.finalizers
        too."""
        return True


AnyStrategy = Strategy[Any]
