"""Which integers of the API have 64 bits; the rest have 32. The published schema says so, Python cannot."""

_WIDE = frozenset(
    {
        "activeDeadlineSeconds",
        "capacity",
        "deletionGracePeriodSeconds",
        "expirationSeconds",
        "fsGroup",
        "generation",
        "gid",
        "gracePeriodSeconds",
        "int",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "minLength",
        "minProperties",
        "nodeAllocatableUpdatePeriodSeconds",
        "observedGeneration",
        "remainingItemCount",
        "resourceSliceCount",
        "revision",
        "runAsGroup",
        "runAsUser",
        "seconds",
        "sizeBytes",
        "startingDeadlineSeconds",
        "supplementalGroups",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "uid",
    }
)
_EXCEPTIONS = {
    ("CertificateSigningRequestSpec", "expirationSeconds"): "int32",
    ("DeviceSubRequest", "count"): "int64",
    ("ExactDeviceRequest", "count"): "int64",
}


def width(owner: str, name: str) -> str:
    """`int32` or `int64` for the integer property `name` of the type `owner`."""
    return _EXCEPTIONS.get((owner, name), "int64" if name in _WIDE else "int32")
