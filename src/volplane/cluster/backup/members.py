"""What an archive contains: its header, its list of members, and the names that it may use."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

FORMAT = 1
HEADER = "backup.json"  # the first member
MEMBERS = "members.json"  # the last member: an archive without it is incomplete

STATE, CLOUD_STATE = "state.db", "cloud/state.db"
DISKS, SNAPSHOTS = "cloud/disks", "cloud/snapshots"
SHARED = "efs"
POINTS = "efs/.points"
DRIVER_SHARES = "shared"
# Files beside the databases. What a node has on its disk is not part of a backup.
FILES = ("cluster.json", "directory.json", "brought.json", "start.json", "version.json")
DIRECTORIES = ("pki", "cloud", "efs", "shared")
XATTR = "SCHILY.xattr."  # GNU tar's prefix of extended attributes

Segments = Sequence[tuple[int, int]]  # offset and length of each part with data


class BackupHeader(Struct, frozen=True, rename="camel"):
    format: int
    program: str  # version of Volplane that wrote it
    created: str
    directory: str
    disks: bool  # the content of volumes is included
    data_version: int = 0


class ArchiveMember(Struct, frozen=True, rename="camel"):
    name: str
    size: int
    sha256: str = ""  # of the parts with data, after their map if there are holes; "" if it has no content


def describe_member(name: str, size: int = 0, sha256: str = "") -> ArchiveMember:
    return ArchiveMember(show_name(name), size, sha256)


def show_name(name: str) -> str:
    """A file name as text; one that is not UTF-8 is shown with escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class MemberList(Struct, frozen=True):
    members: tuple[ArchiveMember, ...]


def encode_map(segments: Segments) -> bytes:
    """The map of a sparse member, as GNU tar's format 1.0 stores it before the data."""
    numbers = [len(segments), *(number for segment in segments for number in segment)]
    text = b"".join(b"%d\n" % number for number in numbers)
    return text + bytes(-len(text) % 512)


def is_known_name(name: str) -> bool:
    """Whether a member belongs to a data directory; also false for names that lead out of it."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return False
    return name in (STATE, *FILES) or parts[0] in DIRECTORIES
