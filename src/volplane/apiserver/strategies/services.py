"""Services as data: defaults and the checks that need no network. No address is allocated."""

from __future__ import annotations

from volplane.api.core import Service, ServicePort
from volplane.api.errors import Cause, duplicate, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.containers import PROTOCOLS
from volplane.apiserver.strategy import ApiCall, Strategy

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


class ServiceStrategy(Strategy[Service]):
    def validate_create(self, call: ApiCall, obj: Service) -> list[Cause]:
        spec = obj.spec
        wrong = checks.one_of("spec.type", spec.type, TYPES)
        if not spec.ports and spec.type != "ExternalName" and spec.cluster_ip != "None":
            wrong.append(required_value("spec.ports"))
        seen: set[str] = set()
        for at, port in enumerate(spec.ports):
            here = f"spec.ports[{at}]"
            wrong += _check_port(here, port, named=len(spec.ports) > 1)
            if port.name and port.name in seen:
                wrong.append(duplicate(f"{here}.name", port.name))
            seen.add(port.name)
        return wrong + checks.labels("spec.selector", spec.selector)

    def validate_update(self, call: ApiCall, old: Service, new: Service) -> list[Cause]:
        return self.validate_create(call, new)


def _check_port(path: str, port: ServicePort, *, named: bool) -> list[Cause]:
    wrong: list[Cause] = []
    if named and not port.name:
        wrong.append(required_value(f"{path}.name"))
    elif port.name:
        wrong += checks.label(f"{path}.name", port.name)
    wrong += checks.port(f"{path}.port", port.port)
    wrong += checks.one_of(f"{path}.protocol", port.protocol, PROTOCOLS)
    return wrong + checks.port_or_name(f"{path}.targetPort", port.target_port)
