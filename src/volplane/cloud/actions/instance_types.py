"""The instance types, with their EBS limits."""

from __future__ import annotations

from volplane.cloud import filters
from volplane.cloud.actions.base import Tree
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.instance_types import EBS_CARDS, EbsBandwidth, InstanceType, find_instance_types
from volplane.cloud.limits import MAX_ATTACHMENTS
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService

_THREADS = 2  # of a core
_NETWORK = "Up to 10 Gigabit"
_EBS = "ebs-info."
_OPTIMIZED = f"{_EBS}ebs-optimized-info."
_FIELDS: filters.FilterFields[InstanceType] = {
    "instance-type": lambda t: [t.name],
    "current-generation": lambda t: ["true"],
    "bare-metal": lambda t: ["false"],
    "hypervisor": lambda t: ["nitro"],
    "memory-info.size-in-mib": lambda t: [str(t.memory)],
    "vcpu-info.default-vcpus": lambda t: [str(t.vcpus)],
    "vcpu-info.default-cores": lambda t: [str(t.vcpus // _THREADS)],
    "vcpu-info.default-threads-per-core": lambda t: [str(_THREADS)],
    f"{_EBS}attachment-limit-type": lambda t: ["shared"],
    f"{_EBS}maximum-ebs-attachments": lambda t: [str(MAX_ATTACHMENTS)],
    f"{_EBS}ebs-optimized-support": lambda t: ["default"],
    f"{_EBS}encryption-support": lambda t: ["supported"],
    f"{_EBS}nvme-support": lambda t: ["required"],
    f"{_OPTIMIZED}baseline-bandwidth-in-mbps": lambda t: [str(t.baseline.mbps)],
    f"{_OPTIMIZED}baseline-iops": lambda t: [str(t.baseline.iops)],
    f"{_OPTIMIZED}baseline-throughput-in-mbps": lambda t: [t.baseline.megabytes],
    f"{_OPTIMIZED}maximum-bandwidth-in-mbps": lambda t: [str(t.maximum.mbps)],
    f"{_OPTIMIZED}maximum-iops": lambda t: [str(t.maximum.iops)],
    f"{_OPTIMIZED}maximum-throughput-in-mbps": lambda t: [t.maximum.megabytes],
}


async def describe_instance_types(service: DiskService, parameters: QueryParameters) -> Tree:
    names = parameters.texts("InstanceType")
    if names and parameters.text("MaxResults"):
        text = "The parameter instanceTypes cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    chosen = filters.apply_filters(find_instance_types(names), _FIELDS, lambda _: {}, parameters)
    page, token = filters.page(chosen, lambda t: t.name, parameters)
    return {"instanceTypeSet": [_show(kind) for kind in page], "nextToken": token}


def _show(kind: InstanceType) -> Tree:
    return {
        "instanceType": kind.name,
        "currentGeneration": True,
        "supportedRootDeviceTypes": ["ebs"],
        "supportedVirtualizationTypes": ["hvm"],
        "bareMetal": False,
        "hypervisor": "nitro",
        "vCpuInfo": {
            "defaultVCpus": kind.vcpus,
            "defaultCores": kind.vcpus // _THREADS,
            "defaultThreadsPerCore": _THREADS,
        },
        "memoryInfo": {"sizeInMiB": kind.memory},
        "instanceStorageSupported": False,
        "ebsInfo": {
            "ebsOptimizedSupport": "default",
            "encryptionSupport": "supported",
            "ebsOptimizedInfo": {
                **_bandwidth("baseline", kind.baseline),
                **_bandwidth("maximum", kind.maximum),
            },
            "nvmeSupport": "required",
            "maximumEbsAttachments": MAX_ATTACHMENTS,
            "attachmentLimitType": "shared",
            "maximumEbsCards": EBS_CARDS,
        },
        "networkInfo": {
            "networkPerformance": _NETWORK,
            "maximumNetworkInterfaces": kind.interfaces,
            "ipv4AddressesPerInterface": kind.addresses,
            "enaSupport": "required",
        },
    }


def _bandwidth(name: str, limit: EbsBandwidth) -> Tree:
    return {
        f"{name}BandwidthInMbps": limit.mbps,
        f"{name}ThroughputInMBps": limit.megabytes,
        f"{name}Iops": limit.iops,
    }
