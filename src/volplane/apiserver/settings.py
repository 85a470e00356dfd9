"""What the API server can be told on the command line."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

HARDLY_READ = ("/registry/events/",)  # what a store may keep small: an hour of them is much, and alike


def _about(text: str) -> Meta:
    return Meta(description=text)


class Settings(Struct, frozen=True):
    data_dir: Annotated[
        str, _about("certificates, tokens, the admin's kubeconfig, and the state if not etcd's")
    ]
    host: Annotated[str, _about("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, _about("0: any that is free")] = 0
    hosts: Annotated[tuple[str, ...], _about("further names and addresses the certificate is valid for")] = ()
    audit_log_path: Annotated[str, _about("write who asked what to this file, as JSON lines; -: stdout")] = ""
    max_requests_inflight: Annotated[
        int, _about("reads of one user that may be under way; more are told to come back. 0: any number")
    ] = 400
    max_mutating_requests_inflight: Annotated[int, _about("the same for writes")] = 200
    etcd_servers: Annotated[
        tuple[str, ...], _about("keep the state in this cluster: https://host:2379,…")
    ] = ()
    etcd_cafile: Annotated[str, _about("who signed the etcd servers' certificates")] = ""
    etcd_certfile: Annotated[str, _about("the certificate to show to etcd")] = ""
    etcd_keyfile: Annotated[str, _about("its key")] = ""
    etcd_prefix: Annotated[str, _about("where in etcd the state lies")] = "/registry"
