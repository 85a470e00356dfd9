"""A pod's /etc/resolv.conf, from its dnsPolicy, its dnsConfig and the machine's own file. Pure.

A pod in a network of its own reaches no name server of the machine. Where its policy names the machine's
resolver (Default), the cluster's DNS stands in for the servers, and forwards to them.
"""

from __future__ import annotations

from msgspec import Struct

from volplane.api.core import Pod

RESOLV_CONF = "/etc/resolv.conf"
MAX_SERVERS, MAX_SEARCHES = 3, 32
CLUSTER_OPTIONS = ("ndots:5",)


class ResolvConf(Struct, frozen=True):
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def render(self) -> str:
        lines = [f"nameserver {server}" for server in self.servers]
        if self.searches:
            lines.insert(0, f"search {' '.join(self.searches)}")
        if self.options:
            lines.append(f"options {' '.join(self.options)}")
        return "".join(f"{line}\n" for line in lines)


class ClusterDns(Struct, frozen=True):
    """Where a pod finds the DNS servers of the cluster, and the domain that they answer for."""

    servers: tuple[str, ...]
    domain: str
    replaces_machine: bool = True  # the pod does not reach the machine's servers


def make_resolv_conf(pod: Pod, machine: ResolvConf, cluster: ClusterDns | None) -> ResolvConf | None:
    """The pod's file; None if it sees the machine's. `cluster`: None if the cluster has no DNS."""
    spec, own = pod.spec, pod.spec.dns_config
    policy = "Default" if spec.host_network and spec.dns_policy == "ClusterFirst" else spec.dns_policy
    if policy == "None":
        base = ResolvConf()
    elif policy == "Default" or cluster is None:
        if cluster is not None and cluster.replaces_machine and not spec.host_network:
            base = ResolvConf(cluster.servers, machine.searches, machine.options)
        elif own is None:
            return None
        else:
            base = machine
    else:
        base = _cluster_first(pod.namespace, machine, cluster)
    options = {option.partition(":")[0]: option for option in base.options}
    for option in own.options if own is not None else ():
        options[option.name] = f"{option.name}:{option.value}" if option.value else option.name
    return ResolvConf(
        _merge(base.servers, own.nameservers if own else ())[:MAX_SERVERS],
        _merge(base.searches, own.searches if own else ())[:MAX_SEARCHES],
        tuple(options.values()),
    )


def _cluster_first(namespace: str, machine: ResolvConf, cluster: ClusterDns) -> ResolvConf:
    domain = cluster.domain
    searches = (f"{namespace}.svc.{domain}", f"svc.{domain}", domain)
    return ResolvConf(cluster.servers, _merge(searches, machine.searches), CLUSTER_OPTIONS)


def _merge(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def parse_resolv_conf(text: str) -> ResolvConf:
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        match line.partition("#")[0].split():
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["search" | "domain", *names]:
                searches = tuple(names)
            case ["options", *names]:
                options += names
    return ResolvConf(tuple(servers), searches, tuple(options))


def read_resolv_conf() -> ResolvConf:
    """That of this machine; empty if it has none."""
    try:
        with open(RESOLV_CONF, encoding="utf-8", errors="replace") as file:
            return parse_resolv_conf(file.read())
    except OSError:
        return ResolvConf()
