"""Whether this version can start a cluster that another version has used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from volplane.base.version import package_version
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.data_version import NEWEST, find_migrations, read_version
from volplane.cluster.fsck.model import CheckFinding, Severity, StoreSurvey
from volplane.cluster.fsck.survey import read_stores
from volplane.store.sqlite.space import NEEDED, free_space


class UpgradeReport(Struct, frozen=True, rename="camel"):
    data_dir: str
    program: str  # this one
    data_version: int  # that it writes
    last_program: str  # that has used the directory; "": before versions were recorded
    last_data_version: int
    objects: int
    migrations: Sequence[str]  # what a start changes
    findings: Sequence[CheckFinding]  # what keeps it from starting, or will not work as before


def check_upgrade(
    layout: DataDirectory, check_options: Callable[[], Iterator[str]], report: Callable[[str], None]
) -> UpgradeReport:
    """Changes nothing. `check_options` yields what is wrong with the options of the last start; `report`
    gets what is read next. Raises UnusableDataDirectory.
    """
    found = read_version(layout)
    stores: Sequence[StoreSurvey] = []
    findings: list[CheckFinding] = []
    if found.version > NEWEST:
        text = f"its files are of version {found.version}, this one knows {NEWEST}"
        findings.append(_fail("directory", text))
    else:
        report("reading the objects")
        stores = read_stores(layout)
        findings += _check_stores(stores)
        findings += [_fail("options", text) for text in check_options()]
        findings += _check_space(layout)
    return UpgradeReport(
        data_dir=str(layout.directory),
        program=package_version(),
        data_version=NEWEST,
        last_program=found.program,
        last_data_version=found.version,
        objects=sum(store.records for store in stores),
        migrations=[each.about for each in find_migrations(found.version)],
        findings=findings,
    )


def _check_stores(stores: Sequence[StoreSurvey]) -> Iterator[CheckFinding]:
    for store in stores:
        if store.damage:
            yield _fail(f"store/{store.name}", store.damage)
        for key, why in store.unreadable.items():
            yield _fail(f"record{key}", f"cannot be read by this version: {why}")
        for resource, count in store.unknown.items():
            text = f"{count} objects of a kind that this version does not serve; they stay in the store"
            yield CheckFinding(Severity.WARNING, f"resource/{resource}", text)


def _check_space(layout: DataDirectory) -> Iterator[CheckFinding]:
    free = free_space(str(layout.directory))
    if free < NEEDED:
        yield _fail("disk", f"{free >> 20} MiB are free, at least {NEEDED >> 20} MiB are needed to start")


def _fail(about: str, message: str) -> CheckFinding:
    return CheckFinding(Severity.ERROR, about, message)
