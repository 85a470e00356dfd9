"""What one kind adds to the generic verbs: defaults, admission, preparation, validation.

The verbs run the hooks in this order and own everything that is alike for all kinds, so a strategy never
does it again: object metadata (name, uid, timestamps, labels, owner references, finalizers), generation,
preconditions, the namespace's existence, deletion, dry run.

    create:  defaults → admit_create → prepare_create → validate_create → store
    update:  defaults → admit_update → prepare_update → validate_update → store   (/status: *_status)
    delete:  admit_delete → grace → store

`strategies.of(kind)` gives the strategy of a kind; kinds without rules of their own get this base class.
Objects are frozen: each hook returns the object to go on with. A refusal is an exception of `api.errors`;
validation returns causes instead, so that all are told at once.
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
from volplane.apiserver.defaults import defaulter_of
from volplane.apiserver.object_access import ObjectAccess, access_for, path_reader
from volplane.apiserver.selectors import SelectorReader

if TYPE_CHECKING:
    from volplane.apiserver.tables.columns import TablePrinter  # whose package knows the strategies

O = TypeVar("O")  # noqa: E741 - a Resource for built-in kinds, a dict for custom resources
R = TypeVar("R", bound=Resource)


class RequestUser(Struct, frozen=True):
    """Who asks. `system:masters` among the groups may do everything."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReader(Protocol):
    """How admission looks at other objects: the newest committed state, decoded and shared."""

    async def get(self, type: type[R], name: str, namespace: str = "") -> R | None: ...

    async def list(self, type: type[R], namespace: str = "") -> Sequence[R]: ...


def _allow_everything(verb: str) -> None:
    """Who calls without asking may do it all."""


class ApiCall(Struct):
    """One request as the hooks see it."""

    verb: str  # create, get, list, watch, update, patch, delete, deletecollection
    kind: Kind
    user: RequestUser
    reader: ObjectReader
    now: datetime
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    manager: str = ""  # fieldManager, or what the User-Agent says; "": what is created has no owner
    size: int = 0  # bytes of the request's body
    check_access: Callable[[str], None] = (
        _allow_everything  # raises when the user may not do this verb to the same thing
    )
    warnings: list[str] = field(default_factory=list)  # hooks append; each becomes a Warning header
    annotations: dict[str, str] = field(default_factory=dict)  # hooks add; they go to the audit log


class ScaleAccess(Protocol):
    """/scale of a kind that is not typed."""

    def view(self, obj: Any) -> Scale: ...

    def current(self, obj: Any) -> Scale:
        """What a change starts from."""
        ...

    def set(self, obj: Any, replicas: int) -> Any: ...


class Strategy(Generic[O]):
    """The behaviour of a kind without rules of its own."""

    # Of a custom kind:
    schema: Mapping[str, Any] | None = None  # its structural schema
    printer: TablePrinter | None = None  # what it shows of itself in tables
    scaling: ScaleAccess | None = None  # where its replicas stand

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.warnings: tuple[str, ...] = (kind.warning,) if kind.warning else ()  # in every response
        self.access: ObjectAccess[O] = access_for(kind)
        self._has_status = kind.has_status

    @cached_property
    def _default(self) -> Callable[[O], O]:  # compiled at first use: a start does not pay for all kinds
        return defaulter_of(self.kind.type)

    @cached_property
    def _immutable(self) -> list[tuple[str, Callable[[O], Any]]]:
        return [(path, path_reader(self.kind.type, path)) for path in self.kind.immutable]

    def selector_reader(self) -> SelectorReader:
        """How selectors read stored objects of the kind."""
        return SelectorReader(self.kind.selectable)

    # Defaults

    def defaults(self, obj: O) -> O:
        """Set the fields that the writer left out, on create, update and patch; idempotent."""
        return self._default(obj)

    # Admission: may read other objects, may refuse

    async def admit_create(self, call: ApiCall, obj: O) -> O:
        return obj

    async def admit_update(self, call: ApiCall, old: O, new: O) -> O:
        """Also for /status and other subresources that write this kind: `call.subresource` tells."""
        return new

    async def admit_delete(self, call: ApiCall, obj: O) -> None:
        return None

    # Preparation: which parts of the writer's object count

    def prepare_create(self, call: ApiCall, obj: O) -> O:
        """The initial status is the server's to write; a kind that starts in a phase sets it here."""
        return self.access.without_status(obj) if self._has_status else obj

    def prepare_update(self, call: ApiCall, old: O, new: O) -> O:
        """The main endpoint does not write status."""
        return self.access.with_status_of(new, old) if self._has_status else new

    def prepare_status(self, call: ApiCall, old: O, new: O) -> O:
        """/status writes status, and metadata unless `kind.status_metadata` is off."""
        return self.access.only_status_of(new, old, metadata=self.kind.status_metadata)

    # Validation

    def validate_name(self, name: str, *, prefix: bool = False) -> list[str]:
        """What is wrong with this name, in the API's words; `prefix` for generateName."""
        return self.kind.check_name(name, prefix)

    def validate_create(self, call: ApiCall, obj: O) -> Causes:
        return ()

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
        """Does this update count as a new generation? Only asked for kinds that count."""
        return self.access.differs(old, new, except_for=("metadata", "status"))

    # Deletion

    def grace(self, call: ApiCall, obj: O, requested: int | None) -> int:
        """Seconds the object stays after DELETE (0: gone at once, or as soon as its finalizers are)."""
        return 0

    def mark_deleted(self, call: ApiCall, obj: O) -> O:
        """The object as stored when deletion begins but cannot end yet (a namespace becomes Terminating)."""
        return obj

    def is_removable(self, obj: O) -> bool:
        """May the object go once its finalizers are gone? A namespace also waits for its spec.finalizers."""
        return True


AnyStrategy = Strategy[Any]
