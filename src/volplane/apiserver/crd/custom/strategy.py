"""The strategy of a custom kind, from its definition.

Everything that depends on the schema is compiled when the kind is registered.
"""

from __future__ import annotations

from typing import Any

from volplane.api import names
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version
from volplane.api.errors import Cause, Forbidden
from volplane.api.kinds import Kind
from volplane.apiserver.crd import cel_rules
from volplane.apiserver.crd.custom.coercion import Coercion, Plain
from volplane.apiserver.crd.custom.columns import printer
from volplane.apiserver.crd.custom.object_access import CustomObjectAccess, CustomSelectorReader
from volplane.apiserver.crd.custom.scale import CustomScale
from volplane.apiserver.crd.schema import VALIDATIONS, Schema, embedded, lists, may_contain_key
from volplane.apiserver.crd.schema.correlate import ValuePair
from volplane.apiserver.crd.schema.values import ROOT_PATH, TYPE_INVALID, validate
from volplane.apiserver.metadata import is_qualified_finalizer
from volplane.apiserver.object_access import ObjectAccess
from volplane.apiserver.selectors import SelectorReader
from volplane.apiserver.strategy import ApiCall, Strategy

# After one of these errors rules are not evaluated, because they could fail for the same reason.
_BLOCKING = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", TYPE_INVALID}
)
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation"
)


class CustomStrategy(Strategy[Plain]):
    def __init__(self, kind: Kind, version: Version, coercion: Coercion, warnings: tuple[str, ...]) -> None:
        super().__init__(kind)
        self._access = CustomObjectAccess(kind, coercion)
        self.access: ObjectAccess[Plain] = self._access
        self.schema = coercion.schema
        self.warnings = warnings
        self.printer = printer(version.additional_printer_columns)
        scale = version.subresources.scale if version.subresources is not None else None
        self.scaling = self._replicas = CustomScale(scale) if scale is not None else None
        self.terminating = False  # the definition is being deleted: no new objects
        self._coercion = coercion
        self._rules = _compile_rules(coercion.schema)
        self._status_schema = (coercion.schema or {}).get("properties", {}).get("status")

    def selector_reader(self) -> SelectorReader:
        return CustomSelectorReader(self.kind.selectable, self._access)

    def defaults(self, obj: Plain, old: Plain | None = None) -> Plain:
        return self._coercion.fill(obj)

    async def admit_create(self, call: ApiCall, obj: Plain) -> Plain:
        if self.terminating:
            name = obj["metadata"].get("name", "")
            why = "create not allowed while custom resource definition is terminating"
            raise Forbidden.to(self.kind, name, why)
        return obj

    def prepare_create(self, call: ApiCall, obj: Plain) -> Plain:
        _warn_of_finalizers(call, obj, ())
        return super().prepare_create(call, obj)

    def prepare_update(self, call: ApiCall, old: Plain, new: Plain) -> Plain:
        _warn_of_finalizers(call, new, old["metadata"].get("finalizers", ()))
        return super().prepare_update(call, old, new)

    def prepare_status(self, call: ApiCall, old: Plain, new: Plain) -> Plain:
        """Only the status and its owners change."""
        result = super().prepare_status(call, old, new)
        meta, owners = {**result["metadata"]}, new["metadata"].get("managedFields")
        meta.pop("managedFields", None)
        return {**result, "metadata": {**meta, "managedFields": owners} if owners else meta}

    def spec_changed(self, old: Plain, new: Plain) -> bool:
        """Any change outside metadata counts, including a status that the main endpoint writes."""
        return self.access.differs(old, new, except_for=("metadata",))

    # Validation

    def validate_create(self, call: ApiCall, obj: Plain) -> list[Cause]:
        causes = validate(obj, self.schema) + self._scale_causes(obj)
        causes += embedded.validate(obj, self.schema) + lists.validate(obj, self.schema)
        return causes + self._rule_causes(call, causes, obj)

    def validate_update(self, call: ApiCall, old: Plain, new: Plain) -> list[Cause]:
        causes = validate(new, self.schema, pair=ValuePair(new, old)) + self._scale_causes(new)
        causes += embedded.validate(new, self.schema) + self._list_causes(old, new)
        return causes + self._rule_causes(call, causes, new, old)

    def validate_status(self, call: ApiCall, old: Plain, new: Plain) -> list[Cause]:
        causes: list[Cause] = []
        if "status" in new:
            pair = ValuePair(new, old).member("status")
            causes += validate(new["status"], self._status_schema, base="status", pair=pair)
        causes += self._scale_causes(new, status_only=True) + self._list_causes(old, new)
        return causes + self._rule_causes(call, causes, new, old)

    def _scale_causes(self, obj: Plain, *, status_only: bool = False) -> list[Cause]:
        return self._replicas.validate(obj, status_only=status_only) if self._replicas is not None else []

    def _list_causes(self, old: Plain, new: Plain) -> list[Cause]:
        """Lists that already had duplicates may keep them."""
        causes = lists.validate(new, self.schema)
        return [] if causes and lists.validate(old, self.schema) else causes

    def _rule_causes(
        self, call: ApiCall, causes: list[Cause], new: Plain, old: Plain | None = None
    ) -> list[Cause]:
        if self._rules is None:
            return []
        if any(cause.reason in _BLOCKING for cause in causes):
            return [Cause("FieldValueInvalid", f"Invalid value: null: {_NOT_CHECKED}", ROOT_PATH)]
        return cel_rules.RuleCheck(call.warnings.append).run(self._rules, new, old)


def _compile_rules(schema: Schema | None) -> cel_rules.RuleNode | None:
    if not may_contain_key(schema, VALIDATIONS):
        return None
    try:
        return cel_rules.compile_rules(schema)
    except cel_rules.InvalidRule as bad:  # a bug: validation of the definition should have refused it
        raise AssertionError(f"a stored rule does not compile: {bad.words}") from bad


def _warn_of_finalizers(call: ApiCall, obj: Plain, known: Any) -> None:
    """Warn about finalizers without a domain, which may conflict with those of other writers."""
    for name in sorted(set(obj["metadata"].get("finalizers", ())) - set(known)):
        if names.is_qualified(name) and not is_qualified_finalizer(name):
            words = "name including a path (/)" if "." in name else "name"
            call.warnings.append(
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer {words} to avoid '
                "accidental conflicts with other finalizer writers"
            )
