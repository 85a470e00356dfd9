"""Compile seccomp profiles to the filter that the kernel runs, with libseccomp.

A profile is JSON in the format of container runtimes: a default action and rules for names of system calls,
with optional conditions on their arguments, on capabilities or on the architecture. All functions block and
are called on a thread. The library is loaded for the first filter.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from volplane.node import node_info
from volplane.node.containers import seccomp_default as default

LIBRARY, PACKAGE = "libseccomp.so.2", "libseccomp2"
LARGEST_PROFILE = 1 << 20
MOST_INSTRUCTIONS = 4096  # limit of the kernel
_INSTRUCTION = 8  # bytes of a struct sock_filter
_EXISTS = -errno.EEXIST


class SeccompCompileError(Exception):
    """The profile cannot be applied; the text is shown in the pod's events."""


Action = Literal[
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_TRAP",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_LOG",
]
_ACTIONS = {
    "SCMP_ACT_KILL": 0x00000000,
    "SCMP_ACT_KILL_THREAD": 0x00000000,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_TRAP": 0x00030000,
    "SCMP_ACT_ERRNO": 0x00050000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_ALLOW": 0x7FFF0000,
}
Operator = Literal[
    "SCMP_CMP_NE",
    "SCMP_CMP_LT",
    "SCMP_CMP_LE",
    "SCMP_CMP_EQ",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_MASKED_EQ",
]
_OPERATORS = {
    "SCMP_CMP_NE": 1,
    "SCMP_CMP_LT": 2,
    "SCMP_CMP_LE": 3,
    "SCMP_CMP_EQ": 4,
    "SCMP_CMP_GE": 5,
    "SCMP_CMP_GT": 6,
    "SCMP_CMP_MASKED_EQ": 7,
}


class SeccompArgument(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A condition on an argument of the call. For MASKED_EQ, `value` is the mask."""

    index: int
    value: int
    op: Operator
    value_two: int = 0


class SeccompCondition(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    caps: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    min_kernel: str = ""

    def holds(self, capabilities: Iterable[str], *, all_of: bool) -> bool:
        """Whether all conditions hold (`all_of`), or any of them."""
        results = []
        if self.caps:
            granted = set(capabilities)
            results.append(
                all(cap in granted for cap in self.caps) if all_of else bool(granted & set(self.caps))
            )
        if self.arches:
            results.append(node_info.architecture() in self.arches)
        if self.min_kernel:
            results.append(_kernel() >= _numbers(self.min_kernel))
        return all(results) if all_of else any(results)


class SeccompRule(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    action: Action
    names: tuple[str, ...] = ()
    name: str = ""  # in older profiles, instead of `names`
    args: tuple[SeccompArgument, ...] | None = ()
    errno_ret: int | None = None
    includes: SeccompCondition = SeccompCondition()
    excludes: SeccompCondition = SeccompCondition()
    comment: str = ""
    errno: str = ""  # the name of errnoRet, in some profiles

    def applies(self, capabilities: Sequence[str]) -> bool:
        return self.includes.holds(capabilities, all_of=True) and not self.excludes.holds(
            capabilities, all_of=False
        )


class ArchitectureMap(Struct, frozen=True, rename="camel"):
    architecture: str
    sub_architectures: tuple[str, ...] | None = ()


class OciSeccompProfile(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    default_action: Action
    default_errno_ret: int | None = None
    default_errno: str = ""
    architectures: tuple[str, ...] = ()
    arch_map: tuple[ArchitectureMap, ...] = field(name="archMap", default=())
    flags: tuple[str, ...] = ()
    syscalls: tuple[SeccompRule, ...] = ()


# --- profiles


def runtime_default() -> OciSeccompProfile:
    with_capability = tuple(
        SeccompRule("SCMP_ACT_ALLOW", names, includes=SeccompCondition(caps=(capability,)))
        for capability, names in default.WITH_CAPABILITY.items()
    )
    personalities = tuple(
        SeccompRule("SCMP_ACT_ALLOW", ("personality",), args=(SeccompArgument(0, value, "SCMP_CMP_EQ"),))
        for value in default.PERSONALITIES
    )
    admin = SeccompCondition(caps=("CAP_SYS_ADMIN",))
    # The flags are clone's first argument, on s390x its second.
    flags = SeccompArgument(
        1 if os.uname().machine == "s390x" else 0, default.NEW_NAMESPACES, "SCMP_CMP_MASKED_EQ"
    )
    return OciSeccompProfile(
        "SCMP_ACT_ERRNO",
        default_errno_ret=errno.EPERM,
        arch_map=_FAMILIES,
        syscalls=(
            SeccompRule("SCMP_ACT_ALLOW", default.ALWAYS),
            *with_capability,
            *personalities,
            SeccompRule("SCMP_ACT_ALLOW", ("clone",), args=(flags,), excludes=admin),
            # A filter cannot read clone3's arguments; with ENOSYS the C library falls back to clone.
            SeccompRule("SCMP_ACT_ERRNO", ("clone3",), errno_ret=errno.ENOSYS, excludes=admin),
            SeccompRule(
                "SCMP_ACT_ALLOW", ("socket",), args=(SeccompArgument(0, default.AF_VSOCK, "SCMP_CMP_NE"),)
            ),
        ),
    )


_FAMILIES = (
    ArchitectureMap("SCMP_ARCH_X86_64", ("SCMP_ARCH_X86", "SCMP_ARCH_X32")),
    ArchitectureMap("SCMP_ARCH_AARCH64", ("SCMP_ARCH_ARM",)),
)


def read_profile(path: str) -> OciSeccompProfile:
    """Raises CannotCompile."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_PROFILE + 1)
    except OSError as error:
        raise SeccompCompileError(f'cannot load seccomp profile "{path}": {error.strerror}') from error
    if len(data) > LARGEST_PROFILE:
        raise SeccompCompileError(
            f'cannot load seccomp profile "{path}": it has more than {LARGEST_PROFILE} bytes'
        )
    try:
        return msgspec.json.decode(data, type=OciSeccompProfile)
    except msgspec.MsgspecError as error:
        raise SeccompCompileError(f'cannot load seccomp profile "{path}": {error}') from error


# --- compiling


@lru_cache(maxsize=8)
def compile_default(capabilities: tuple[str, ...]) -> str:
    """RuntimeDefault for a container with these capabilities, encoded for `ContainerSpec.seccomp`."""
    return _encode_program(compile_profile(runtime_default(), capabilities))


def compile_file(path: str, capabilities: tuple[str, ...]) -> str:
    """The filter of a profile in a file, which is read each time because it may have changed."""
    return _compile_cached(read_profile(path), capabilities)


@lru_cache(maxsize=32)
def _compile_cached(profile: OciSeccompProfile, capabilities: tuple[str, ...]) -> str:
    return _encode_program(compile_profile(profile, capabilities))


def _encode_program(program: bytes) -> str:
    return base64.b64encode(program).decode()


def compile_profile(profile: OciSeccompProfile, capabilities: Sequence[str]) -> bytes:
    """The program, an array of struct sock_filter. Raises CannotCompile."""
    if profile.flags:
        raise SeccompCompileError(f"seccomp flags are not supported: {', '.join(profile.flags)}")
    library = _library()
    fallback = _action(profile.default_action, profile.default_errno_ret)
    with _context(library, fallback) as context:
        for architecture in _architectures(profile):
            _add_architecture(library, context, architecture)
        for rule in profile.syscalls:
            if rule.applies(capabilities):
                _add_rule(library, context, rule, fallback)
        program = _export(library, context)
    if len(program) > MOST_INSTRUCTIONS * _INSTRUCTION:
        raise SeccompCompileError(
            f"the seccomp profile makes {len(program) // _INSTRUCTION} instructions; the kernel takes "
            f"{MOST_INSTRUCTIONS}"
        )
    return program


def _action(action: Action, number: int | None) -> int:
    if action != "SCMP_ACT_ERRNO":
        return _ACTIONS[action]
    value = errno.EPERM if number is None else number
    if not 0 <= value <= 0xFFFF:
        raise SeccompCompileError(f"errnoRet of a seccomp profile must be between 0 and 65535, not {value}")
    return _ACTIONS[action] | value


def _architectures(profile: OciSeccompProfile) -> Iterator[str]:
    yield from profile.architectures
    for family in profile.arch_map:
        if family.architecture.removeprefix("SCMP_ARCH_").lower() == os.uname().machine:
            yield from family.sub_architectures or ()


def _add_architecture(library: ctypes.CDLL, context: Any, name: str) -> None:
    token = library.seccomp_arch_resolve_name(name.removeprefix("SCMP_ARCH_").lower().encode())
    if not token:
        raise SeccompCompileError(f"unknown architecture {name!r} in the seccomp profile")
    code = library.seccomp_arch_add(context, token)
    # An architecture with another byte order cannot be in the same filter, and cannot run here either.
    if code not in (0, _EXISTS, -errno.EDOM, -errno.EINVAL):
        raise SeccompCompileError(f"architecture {name!r} of the seccomp profile: {os.strerror(-code)}")


def _add_rule(library: ctypes.CDLL, context: Any, rule: SeccompRule, fallback: int) -> None:
    action = _action(rule.action, rule.errno_ret)
    if action == fallback:
        return  # libseccomp refuses rules that have no effect
    arguments = _arguments(rule.args or ())
    for name in rule.names or ((rule.name,) if rule.name else ()):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            continue  # unknown to this libseccomp: the default action applies
        code = library.seccomp_rule_add_array(context, action, number, len(arguments), arguments)
        if code not in (0, _EXISTS):
            raise SeccompCompileError(f"rule for {name} in the seccomp profile: {os.strerror(-code)}")


class _Compare(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def _arguments(arguments: Sequence[SeccompArgument]) -> ctypes.Array[_Compare]:
    for argument in arguments:
        numbers = (argument.value, argument.value_two)
        if not 0 <= argument.index <= 5 or not all(0 <= number < 1 << 64 for number in numbers):
            raise SeccompCompileError(f"condition of a seccomp rule is out of range: {argument}")
    compares = [_Compare(a.index, _OPERATORS[a.op], a.value, a.value_two) for a in arguments]
    return (_Compare * len(compares))(*compares)


def _export(library: ctypes.CDLL, context: Any) -> bytes:
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        if code := library.seccomp_export_bpf(context, descriptor):
            raise SeccompCompileError(f"the seccomp profile cannot be compiled: {os.strerror(-code)}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            return file.read()
    finally:
        os.close(descriptor)


@contextmanager
def _context(library: ctypes.CDLL, fallback: int) -> Iterator[Any]:
    context = library.seccomp_init(fallback)
    if not context:
        raise SeccompCompileError(
            "the seccomp profile's default action is not known to this machine's libseccomp"
        )
    try:
        # Search in a tree: otherwise a filter compares hundreds of call numbers one by one.
        library.seccomp_attr_set(context, _OPTIMIZE, 2)
        yield context
    finally:
        library.seccomp_release(context)


_OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise SeccompCompileError(
            f"seccomp profiles need {LIBRARY}, which is not on this node: install the package {PACKAGE}"
        ) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_release.restype = None
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_arch_resolve_name.restype = ctypes.c_uint32
    library.seccomp_arch_resolve_name.argtypes = (ctypes.c_char_p,)
    library.seccomp_arch_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


# --- this machine


def _kernel() -> tuple[int, ...]:
    return _numbers(os.uname().release)


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version."""
    parts = [part for part in version.replace("-", ".").split(".")[:2] if part.isdigit()]
    return tuple(map(int, parts))
