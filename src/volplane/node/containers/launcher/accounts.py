"""The users and groups that containers see: those of the system, not the people of this machine.

An image knows no user of the machine it runs on. If a volume's group were a group of the machine, `ls -l`
would show its name instead of the number.
"""

from __future__ import annotations

PASSWD, GROUP = "/etc/passwd", "/etc/group"
_FIRST_PERSON = 1000  # the first id of an ordinary user, on all common distributions
_OVERFLOW = 65534  # the id that the kernel shows for ids it cannot map
_PASSWD_FIELDS, _GROUP_FIELDS = 7, 4


def make_account_files(passwd: bytes, group: bytes) -> dict[str, bytes]:
    """The contents of both files, by path."""
    users = _system_entries(passwd, _PASSWD_FIELDS)
    names = {fields[0] for fields in users}
    groups = [[*fields[:3], _select(fields[3], names)] for fields in _system_entries(group, _GROUP_FIELDS)]
    return {PASSWD: _render(users), GROUP: _render(groups)}


def _system_entries(text: bytes, count: int) -> list[list[bytes]]:
    entries = [line.split(b":") for line in text.split(b"\n")]
    return [fields for fields in entries if len(fields) == count and _is_of_system(fields[2])]


def _is_of_system(number: bytes) -> bool:
    return number.isdigit() and len(number) < 10 and (int(number) < _FIRST_PERSON or int(number) == _OVERFLOW)


def _select(members: bytes, names: set[bytes]) -> bytes:
    return b",".join(name for name in members.split(b",") if name in names)


def _render(entries: list[list[bytes]]) -> bytes:
    return b"".join(b":".join(fields) + b"\n" for fields in entries)
