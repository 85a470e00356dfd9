"""The flags of sidecars: those of the author's manifests, or defaults that the capabilities suggest.

Where instances run decides some flags in both cases: an instance per node needs
`--node-deployment`, and capacities belong to the workload that publishes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volplane.cluster.external_driver.model import DeploymentShape, DiscoveredDriver, ExternalDriver

# Decided by the deployment or by the machine, not by the author's manifests.
OWN_FLAGS = frozenset(
    {
        "csi-address",
        "kubeconfig",
        "master",
        "v",
        "http-endpoint",
        "metrics-address",
        "metrics-path",
        "capacity-ownerref-level",
    }
)
_OWN_PREFIXES = ("leader-election", "node-deployment", "kube-api-")
DEFAULTS = {
    "provisioner": ("--extra-create-metadata", "--timeout=60s"),
    "attacher": ("--timeout=60s",),
    "resizer": ("--timeout=60s",),
    "snapshotter": (),  # off upstream, and drivers refuse parameters that they do not know
}


def keep_author_flags(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments without those that the deployment decides."""
    return tuple(_keep(arguments))


def _keep(arguments: Sequence[str]) -> Iterator[str]:
    skips = False
    for word in arguments:
        if word.startswith("-"):
            name, equals, _ = word.lstrip("-").partition("=")
            skips = _is_own(name)
            if not skips:
                yield word
            skips = skips and not equals
        elif not skips:
            yield word


def _is_own(name: str) -> bool:
    return name in OWN_FLAGS or name.startswith(_OWN_PREFIXES)


def find_flags(
    external: ExternalDriver, facts: DiscoveredDriver, where: DeploymentShape
) -> dict[str, list[str]]:
    """The sidecars that the driver's capabilities and its CSIDriver need, with their flags."""
    each = where is DeploymentShape.PER_NODE
    made: dict[str, list[str]] = {}
    if facts.provisions:
        made["provisioner"] = [*_basic_flags(external, "provisioner"), *_placement(where)]
        if _publishes_capacities(external, facts):
            level = 2 if where is DeploymentShape.CENTRAL else 1
            made["provisioner"] += ["--enable-capacity", f"--capacity-ownerref-level={level}"]
    # With attachRequired, a driver without ControllerPublishVolume still needs an attacher, which then marks
    # volumes as attached without a call.
    if facts.attaches or _needs_marked_attachments(external):
        made["attacher"] = [*_basic_flags(external, "attacher"), *(["--leader-election"] if each else [])]
    # A resizer calls one controller for all volumes: it cannot serve the volumes of one node only. If only
    # nodes expand volumes, it makes no calls, and any replica may lead.
    if facts.expands_on_nodes or ((facts.expands or facts.modifies) and not each):
        leads = ["--leader-election"] if facts.expands_on_nodes else []
        made["resizer"] = [*_basic_flags(external, "resizer"), *leads]
    if facts.snapshots:
        made["snapshotter"] = [
            *_basic_flags(external, "snapshotter"),
            *(["--node-deployment"] if each else []),
        ]
        if facts.groups and "snapshotter" not in external.deployed_sidecars:
            made["snapshotter"].append("--feature-gates=CSIVolumeGroupSnapshot=true")
    return made


def _basic_flags(external: ExternalDriver, role: str) -> tuple[str, ...]:
    return external.deployed_sidecars.get(role, DEFAULTS[role])


def _placement(where: DeploymentShape) -> list[str]:
    if where is not DeploymentShape.PER_NODE:
        return []
    return ["--node-deployment", "--strict-topology", "--immediate-topology=false"]


def _publishes_capacities(external: ExternalDriver, facts: DiscoveredDriver) -> bool:
    given = external.deployed_sidecars.get("provisioner")
    if given is None:
        return facts.publishes_capacity
    return any(flag.lstrip("-") in ("enable-capacity", "enable-capacity=true") for flag in given)


def _needs_marked_attachments(external: ExternalDriver) -> bool:
    return external.driver is not None and external.driver.spec.attach_required is not False
