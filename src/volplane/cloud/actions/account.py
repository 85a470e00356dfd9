"""Settings of the account: nothing in them can be changed here."""

from __future__ import annotations

from volplane.cloud.actions.base import Tree
from volplane.cloud.errors import invalid_parameter
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService

# The quotas of a new account. There is no network, so there is no default VPC.
_ATTRIBUTES = {
    "supported-platforms": "VPC",
    "default-vpc": "none",
    "max-instances": "20",
    "vpc-max-security-groups-per-interface": "5",
    "max-elastic-ips": "5",
    "vpc-max-elastic-ips": "5",
}


async def describe_account_attributes(service: DiskService, parameters: QueryParameters) -> Tree:
    names = parameters.texts("AttributeName")
    for name in names:
        if name not in _ATTRIBUTES:
            raise invalid_parameter("attributeName", name, f"Valid values: {', '.join(_ATTRIBUTES)}.")
    return {
        "accountAttributeSet": [
            {"attributeName": name, "attributeValueSet": [{"attributeValue": _ATTRIBUTES[name]}]}
            for name in names or _ATTRIBUTES
        ]
    }


async def get_ebs_encryption_by_default(service: DiskService, parameters: QueryParameters) -> Tree:
    """A volume is encrypted only if its request or its source says so."""
    return {"ebsEncryptionByDefault": False}
