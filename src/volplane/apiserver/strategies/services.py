"""Services: validation, cluster IPs and node ports."""

from __future__ import annotations

from msgspec import structs

from volplane.api.core import Service, ServicePort, ServiceSpec
from volplane.api.errors import Causes, Invalid, duplicate, invalid, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies import service_addresses as addresses
from volplane.apiserver.strategies.pods.containers import PROTOCOLS
from volplane.apiserver.strategy import ApiCall, Strategy

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


class ServiceStrategy(Strategy[Service]):
    async def admit_create(self, call: ApiCall, obj: Service) -> Service:
        return structs.replace(obj, spec=await self._allocate(call, obj, obj.spec))

    async def admit_update(self, call: ApiCall, old: Service, new: Service) -> Service:
        if call.subresource:
            return new
        spec = addresses.keep_allocated(old.spec, new.spec)
        needs_more = addresses.needs_cluster_ip(spec) and not spec.cluster_ip
        needs_more |= addresses.needs_node_ports(spec) and not all(p.node_port for p in spec.ports)
        return structs.replace(new, spec=await self._allocate(call, new, spec) if needs_more else spec)

    async def _allocate(self, call: ApiCall, obj: Service, spec: ServiceSpec) -> ServiceSpec:
        others = [o for o in await call.reader.list(Service) if o.key != obj.key]
        if (problem := addresses.find_problem(spec, others)) is not None:
            raise Invalid.of(call.kind.kind, obj.name, [problem])
        return addresses.allocate(spec, others)

    def validate_update(self, call: ApiCall, old: Service, new: Service) -> Causes:
        yield from super().validate_update(call, old, new)
        before, after = old.spec, new.spec
        had_ip = before.type != "ExternalName" and before.cluster_ip
        if had_ip and after.type != "ExternalName" and after.cluster_ip != before.cluster_ip:
            yield invalid("spec.clusterIPs[0]", [after.cluster_ip], "may not change once set")

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
