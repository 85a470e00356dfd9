"""The command-line options of the API server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from volplane.base.settings import about

COMPRESSED_PREFIXES = (
    "/registry/events/",
)  # keys whose values the store compresses: many, similar, and rarely read


class ApiServerOptions(Struct, frozen=True):
    data_dir: Annotated[
        str, about("directory for certificates, tokens, the admin kubeconfig and the state", value="DIR")
    ]
    host: Annotated[str, about("address to listen on")] = "127.0.0.1"
    port: Annotated[int, about("port to listen on; 0 picks a free one")] = 0
    hosts: Annotated[
        tuple[str, ...],
        about("additional host names and addresses in the serving certificate", value="HOST,…"),
    ] = ()
    audit_log_path: Annotated[str, about("write the audit log to this file; - for stdout", value="FILE")] = ""
    max_requests_inflight: Annotated[
        int, about("maximum concurrent reads per user; excess requests get status 429; 0: no limit")
    ] = 400
    max_mutating_requests_inflight: Annotated[
        int, about("maximum concurrent writes per user; excess requests get status 429; 0: no limit")
    ] = 200
    max_connections: Annotated[
        int,
        about("maximum open connections; 0: a quarter of the process's file descriptors, at most 4096"),
    ] = 0
    default_not_ready_toleration_seconds: Annotated[
        int, about("seconds a pod stays on a node that is not ready, unless it has a toleration of its own")
    ] = 300
    default_unreachable_toleration_seconds: Annotated[
        int, about("seconds a pod stays on an unreachable node, unless it has a toleration of its own")
    ] = 300
    etcd_servers: Annotated[
        tuple[str, ...], about("store the state in this etcd cluster: https://host:2379,…", value="URL,…")
    ] = ()
    etcd_cafile: Annotated[str, about("CA certificate of the etcd servers", value="FILE")] = ""
    etcd_certfile: Annotated[str, about("client certificate for etcd", value="FILE")] = ""
    etcd_keyfile: Annotated[str, about("private key of the client certificate", value="FILE")] = ""
    etcd_prefix: Annotated[str, about("prefix of all keys in etcd")] = "/registry"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"--port must be a port number, not {self.port}")
        for flag in ("max_connections", "max_requests_inflight", "max_mutating_requests_inflight"):
            if (given := getattr(self, flag)) < 0:
                raise ValueError(f"--{flag.replace('_', '-')} must not be negative, not {given}")
