"""Containers: environment, mounts, probes, resources, security."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.refs import (
    ConfigMapKeySelector,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretKeySelector,
)
from volplane.api.object import IntOrString, Object, Quantity, field, map_list, merge, no_omitempty, set_list


class ContainerPort(Object):
    name: str = ""
    host_port: int = 0
    container_port: int = no_omitempty(factory=int)
    protocol: str = ""
    host_ip: str = field(name="hostIP", default="")


class ConfigMapEnvSource(Object):
    name: str = ""
    optional: bool | None = None


class SecretEnvSource(Object):
    name: str = ""
    optional: bool | None = None


class EnvFromSource(Object):
    prefix: str = ""
    config_map_ref: ConfigMapEnvSource | None = None
    secret_ref: SecretEnvSource | None = None


class EnvVarSource(Object):
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: ConfigMapKeySelector | None = None
    secret_key_ref: SecretKeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(Object):
    name: str = no_omitempty(factory=str)
    value: str = ""
    value_from: EnvVarSource | None = None


class ResourceClaim(Object):
    name: str = no_omitempty(factory=str)
    request: str = ""


class ResourceRequirements(Object):
    limits: Mapping[str, Quantity] = {}
    requests: Mapping[str, Quantity] = {}
    claims: Annotated[tuple[ResourceClaim, ...], map_list("name")] = ()


class ContainerResizePolicy(Object):
    resource_name: str = no_omitempty(factory=str)
    restart_policy: str = no_omitempty(factory=str)


class ContainerRestartRuleOnExitCodes(Object):
    operator: str = ""
    values: Annotated[tuple[int, ...], set_list] = ()


class ContainerRestartRule(Object):
    action: str = ""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class VolumeMount(Object):
    name: str = no_omitempty(factory=str)
    read_only: bool = False
    recursive_read_only: str | None = None
    mount_path: str = no_omitempty(factory=str)
    sub_path: str = ""
    mount_propagation: str | None = None
    sub_path_expr: str = ""


class VolumeDevice(Object):
    name: str = no_omitempty(factory=str)
    device_path: str = no_omitempty(factory=str)


class ExecAction(Object):
    command: tuple[str, ...] = ()


class HTTPHeader(Object):
    name: str = no_omitempty(factory=str)
    value: str = no_omitempty(factory=str)


class HTTPGetAction(Object):
    path: str = ""
    port: IntOrString = no_omitempty(factory=int)
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Object):
    port: IntOrString = no_omitempty(factory=int)
    host: str = ""


class GRPCAction(Object):
    port: int = no_omitempty(factory=int)
    service: str | None = None


class Probe(Object):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None


class SleepAction(Object):
    seconds: int = no_omitempty(factory=int)


class LifecycleHandler(Object):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Object):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


class Capabilities(Object):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SELinuxOptions(Object):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class WindowsSecurityContextOptions(Object):
    gmsa_credential_spec_name: str | None = None
    gmsa_credential_spec: str | None = None
    run_as_user_name: str | None = None
    host_process: bool | None = None


class SeccompProfile(Object):
    type: str = no_omitempty(factory=str)
    localhost_profile: str | None = None


class AppArmorProfile(Object):
    type: str = no_omitempty(factory=str)
    localhost_profile: str | None = None


class SecurityContext(Object):
    capabilities: Capabilities | None = None
    privileged: bool | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None


class Container(Object):
    name: str = no_omitempty(factory=str)
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: Annotated[
        tuple[ContainerPort, ...], merge("containerPort", keys=("containerPort", "protocol"))
    ] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: Annotated[tuple[EnvVar, ...], merge("name")] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: str | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    volume_mounts: Annotated[tuple[VolumeMount, ...], merge("mountPath")] = ()
    volume_devices: Annotated[tuple[VolumeDevice, ...], merge("devicePath")] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class EphemeralContainer(Object):
    name: str = no_omitempty(factory=str)
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: Annotated[
        tuple[ContainerPort, ...], merge("containerPort", keys=("containerPort", "protocol"))
    ] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: Annotated[tuple[EnvVar, ...], merge("name")] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: str | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    volume_mounts: Annotated[tuple[VolumeMount, ...], merge("mountPath")] = ()
    volume_devices: Annotated[tuple[VolumeDevice, ...], merge("devicePath")] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target_container_name: str = ""
