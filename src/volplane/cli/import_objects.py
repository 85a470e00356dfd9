"""`volplane import`: create the objects of a file in a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from volplane.cli.cluster_reader import ClusterChoice, cluster_flags, run_with
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@cluster_flags
def command(file: Path, cluster: ClusterChoice) -> None:
    """Create the objects of FILE, which `volplane export objects` has written, in any Kubernetes cluster.

    Bound claims get their volumes, and snapshots their contents, without a call of the driver: stop the other
    cluster first, because both would use the same volumes. Objects that exist are left as they are.
    """
    from volplane.cluster.objects.importing import ObjectImport

    items = _read(file)
    with ProgressLine() as progress:
        done = run_with(
            cluster, "volplane-import", lambda transport: ObjectImport(transport, progress.update).run(items)
        )
    click.echo(f"{done.created} objects created, {len(done.existing)} exist already")
    for problem in done.problems:
        click.echo(f"volplane: not imported: {problem}", err=True)
    if done.problems:
        sys.exit(1)


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        document = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CommandError(f"{file} is not JSON: {error}") from error
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or document.get("kind") != "List":
        raise CommandError(f"{file} is not a List of objects, as `volplane export objects` writes it")
    for at, item in enumerate(items):
        if not isinstance(item, dict) or not item.get("kind") or not item.get("apiVersion"):
            raise CommandError(f"{file}: items[{at}] has no kind and apiVersion")
        if not isinstance(item.get("metadata"), dict) or not item["metadata"].get("name"):
            raise CommandError(f"{file}: items[{at}].metadata.name: Required value")
    return items
