"""Content negotiation: JSON, YAML, a table, or metadata only.

The clauses of Accept are tried by quality, then by position; the first supported one wins. A client that asks
for protobuf gets JSON: clients choose the decoder by the Content-Type of the response.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from volplane.api.errors import NotAcceptable

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
TABLE, METADATA, METADATA_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
_TRANSFORMS = frozenset({TABLE, METADATA, METADATA_LIST})
_TABLE_VERSIONS = frozenset({"v1", "v1beta1"})


class ResponseFormat(Struct, frozen=True):
    media: str = JSON
    transform: str = ""
    version: str = "v1"  # version of meta.k8s.io for the transform


PLAIN_JSON = ResponseFormat()


@lru_cache(maxsize=256)
def negotiate(accept: str, *, numbered: bool = True) -> ResponseFormat:
    """`numbered`: the kind has a protobuf form, so clients may ask for protobuf (custom kinds have none)."""
    if accept in ("", "*/*", JSON):
        return PLAIN_JSON
    for clause in _clauses(accept):
        if clause[0] == PROTOBUF and not numbered and "as" not in clause[1]:
            continue
        format = _format_of(clause)
        if format is not None:
            return format
    listed = ", ".join((JSON, YAML, PROTOBUF))
    raise NotAcceptable(f"only the following media types are accepted: {listed}")


def negotiate_stream(accept: str, *, numbered: bool = True) -> ResponseFormat:
    """The format of a watch: YAML has no form for a stream."""
    format = negotiate(accept, numbered=numbered)
    if format.media == YAML:
        streams = (JSON, PROTOBUF) if numbered or format.transform else (JSON,)
        listed = ", ".join(f"{media};stream=watch" for media in streams)
        raise NotAcceptable(f"only the following media types are accepted: {listed}")
    return format


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    clauses = []
    for at, text in enumerate(accept.split(",")):
        media, *rest = (part.strip() for part in text.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
        clauses.append((-_quality(parameters.pop("q", "1")), at, media.lower(), parameters))
    return [(media, parameters) for _, _, media, parameters in sorted(clauses, key=lambda c: c[:2])]


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _format_of(clause: tuple[str, dict[str, str]]) -> ResponseFormat | None:
    media, parameters = clause
    transform = parameters.get("as", "")
    if media == PROTOBUF and transform == TABLE:
        return None
    if media in ("*/*", "application/*", PROTOBUF):
        media = JSON
    if media not in (JSON, YAML):
        return None
    if not transform:
        return None if parameters.keys() & {"g", "v"} else ResponseFormat(media)
    version = parameters.get("v", "v1")
    if parameters.get("g") != "meta.k8s.io" or transform not in _TRANSFORMS or version not in _TABLE_VERSIONS:
        return None
    return ResponseFormat(media, transform, version)
