"""`volplane provisioner`: the provisioner beside a driver, with external-provisioner's flags."""

from volplane.cli.sidecar import verb
from volplane.sidecars import provisioner

command = verb(
    "csi-provisioner",
    provisioner.ProvisionerOptions,
    provisioner.run,
    "Make and delete volumes for claims until stopped.",
)
