"""Type errors in the words of Go's JSON decoder, which clients of the API know.

msgspec says ``Expected `str`, got `int` - at `$.spec.containers[0].image` ``; the API says `json: cannot
unmarshal number into Go struct field Container.spec.containers.image of type string`.
"""

import re

import msgspec

from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import integer_width

_SENTENCE = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>\w+)`(?: - at `\$(?P<path>.*)`)?")
_GOT = {
    "int": "number",
    "float": "number",
    "str": "string",
    "bool": "bool",
    "object": "object",
    "array": "array",
}
_SCALARS = {"string": "string", "boolean": "bool", "number": "float64", "bytes": "[]uint8"}


def type_error(of: type[Object], error: msgspec.ValidationError) -> str:
    """The API's message for a value of the wrong type."""
    found = _SENTENCE.search(str(error))
    if found is None:
        return str(error)
    got = _GOT.get(found["got"], found["got"])
    steps = [s for s in re.split(r"\.|\[[^\]]*\]", found["path"] or "") if s]
    owner, field = _locate(of, steps)
    inside = (found["path"] or "").endswith("]")
    if field is None:
        return f"json: cannot unmarshal {got} into Go value of type v1.{of.__name__}"
    kind = go_type(owner, field.item if inside and field.item else field, field.name)
    return (
        f"json: cannot unmarshal {got} into Go struct field {owner.__name__}.{'.'.join(steps)} of type {kind}"
    )


def _locate(of: type[Object], steps: list[str]) -> tuple[type[Object], Field | None]:
    owner, here, field = of, of, None
    for step in steps:
        owner, field = here, schema(here).get(step)
        inner = field
        while inner is not None and inner.item is not None:
            inner = inner.item
        if inner is None or inner.type is None:
            break
        here = inner.type
    return owner, field


def go_type(owner: type[Object], field: Field, name: str) -> str:
    """The Go type of a field, as far as the schema tells."""
    if field.format == "int-or-string":
        return "intstr.IntOrString"
    match field.shape:
        case "integer":
            return integer_width(owner, name)
        case "list":
            return f"[]{go_type(owner, field.item, name) if field.item else 'interface {}'}"
        case "map":
            return f"map[string]{go_type(owner, field.item, name) if field.item else 'interface {}'}"
        case "object":
            return f"v1.{field.type.__name__ if field.type else 'Object'}"
    return _SCALARS.get(field.shape, "interface {}")
