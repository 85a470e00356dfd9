"""`volplane provisioner`: the provisioner sidecar of a driver, with external-provisioner's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars import provisioner

command = verb(
    "csi-provisioner",
    provisioner.ProvisionerOptions,
    provisioner.run,
    "Create and delete volumes for claims until stopped.",
)
