"""A driver's Helm chart as manifests, rendered by the helm program of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from volplane.apiserver.health_and_metrics import VERSION
from volplane.cluster.user_drivers import BadManifest, Manifest, parse_manifests
from volplane.host.processes import HostCommandFailed, run

PROGRAM = "helm"
RELEASE = "driver"
NAMESPACE = "kube-system"
TIMEOUT = 120.0  # seconds
# Charts ask for these before they render a VolumeSnapshotClass.
SNAPSHOT_APIS = ("snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1beta2")


class BadChart(BadManifest):
    """A chart cannot be rendered; the message says why."""


def render(chart: str, values: Sequence[str] = ()) -> list[Manifest]:
    """The objects of a chart (a directory or an archive) with the values of these files. Raises BadChart.

    Hooks (tests, jobs before an upgrade) are left out: they are not part of the deployment.
    """
    for file in (chart, *values):
        if not Path(file).exists():
            raise BadChart(f"{file} does not exist")
    if Path(chart).is_dir() and not Path(chart, "Chart.yaml").is_file():
        raise BadChart(f"{chart} is not a chart: it has no Chart.yaml")
    if shutil.which(PROGRAM) is None:
        raise BadChart(
            f"{PROGRAM} is not on PATH, and renders the chart; where it is, `{PROGRAM} template {RELEASE}"
            f" {chart} > driver.yaml` does it, and --manifest driver.yaml uses the result"
        )
    argv = [PROGRAM, "template", RELEASE, chart, "--namespace", NAMESPACE, "--include-crds", "--no-hooks"]
    argv += ["--kube-version", VERSION["gitVersion"].partition("-")[0]]
    argv += [word for api in SNAPSHOT_APIS for word in ("--api-versions", api)]
    argv += [word for file in values for word in ("--values", file)]
    try:
        completed = run(argv, timeout=TIMEOUT)
    except HostCommandFailed as error:
        raise BadChart(f"{chart}: {error.completed.stderr.decode(errors='replace').strip()}") from error
    except TimeoutError as error:
        raise BadChart(f"{chart}: helm template does not end within {TIMEOUT:g} s") from error
    objects = list(parse_manifests(completed.stdout.decode(errors="replace"), chart))
    if not objects:
        raise BadChart(f"{chart} renders no objects with these values")
    return objects
