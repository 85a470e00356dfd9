"""Services: validation only. No cluster IP is allocated."""

from __future__ import annotations

from volplane.api.core import Service, ServicePort
from volplane.api.errors import Causes, duplicate, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.containers import PROTOCOLS
from volplane.apiserver.strategy import ApiCall, Strategy

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


class ServiceStrategy(Strategy[Service]):
    def validate_create(self, call: ApiCall, obj: Service) -> Causes:
        spec = obj.spec
        yield from checks.one_of("spec.type", spec.type, TYPES)
        if not spec.ports and spec.type != "ExternalName" and spec.cluster_ip != "None":
            yield required_value("spec.ports")
        seen: set[str] = set()
        for at, port in enumerate(spec.ports):
            here = f"spec.ports[{at}]"
            yield from _check_port(here, port, named=len(spec.ports) > 1)
            if port.name and port.name in seen:
                yield duplicate(f"{here}.name", port.name)
            seen.add(port.name)
        yield from checks.labels("spec.selector", spec.selector)


def _check_port(path: str, port: ServicePort, *, named: bool) -> Causes:
    if named and not port.name:
        yield required_value(f"{path}.name")
    elif port.name:
        yield from checks.label(f"{path}.name", port.name)
    yield from checks.port(f"{path}.port", port.port)
    yield from checks.one_of(f"{path}.protocol", port.protocol, PROTOCOLS)
    yield from checks.port_or_name(f"{path}.targetPort", port.target_port)
