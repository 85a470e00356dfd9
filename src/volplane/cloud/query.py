"""EC2's query protocol: parses `Filter.1.Name=status&Filter.1.Value.1=available` into a tree."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter, missing_parameter
from volplane.web.forms import decode_form

Tree = dict[str, "Tree | str"]


class QueryParameters:
    def __init__(self, tree: Mapping[str, Tree | str]) -> None:
        self._tree = tree

    @classmethod
    def parse(cls, text: str) -> QueryParameters:
        tree: Tree = {}
        for name, value in decode_form(text):
            _insert(tree, name.split("."), value)
        return cls(tree)

    def names(self) -> list[str]:
        return list(self._tree)

    def text(self, name: str, default: str = "") -> str:
        value = self._tree.get(name, default)
        return value if isinstance(value, str) else default

    def require(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise missing_parameter(name)
        return value

    def number(self, name: str, default: int = 0) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return int(text)
        except ValueError:
            raise invalid_parameter(name, text, "An integer is expected.") from None

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise invalid_parameter(name, text, "true or false is expected.")
        return text == "true"

    def texts(self, name: str) -> list[str]:
        """`Name.1`, `Name.2`, … in order."""
        return [value for value in self._items(name) if isinstance(value, str)]

    def struct(self, name: str) -> QueryParameters:
        """`Name.Field`, …; empty if there are none."""
        value = self._tree.get(name, {})
        return QueryParameters({} if isinstance(value, str) else value)

    def structs(self, name: str) -> list[QueryParameters]:
        return [QueryParameters(value) for value in self._items(name) if not isinstance(value, str)]

    def _items(self, name: str) -> list[Tree | str]:
        value = self._tree.get(name, {})
        if isinstance(value, str):
            return [value]
        return [value[key] for key in sorted((k for k in value if k.isdigit()), key=int)]


def _insert(tree: Tree, names: list[str], value: str) -> None:
    *path, last = names
    for name in path:
        below = tree.setdefault(name, {})
        if isinstance(below, str):
            raise Ec2ErrorResponse("MalformedQueryString", f"{'.'.join(names)} contradicts another parameter")
        tree = below
    tree[last] = value


def parse_tags(items: list[QueryParameters]) -> dict[str, str]:
    found = {}
    for item in items:
        key = item.require("Key")
        if key.lower().startswith("aws:"):
            raise Ec2ErrorResponse(
                "InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use"
            )
        if len(key) > 127 or len(item.text("Value")) > 255:
            raise invalid_parameter("tag", key, "Keys have up to 127 characters, values up to 255.")
        found[key] = item.text("Value")
    return found
