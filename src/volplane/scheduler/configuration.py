"""KubeSchedulerConfiguration: upstream's file of profiles, plugins and leader election.

Plugins are chosen by name and extension point. What upstream has and this scheduler has not is refused where
it would change decisions, and listed in `ignored` where it is upstream's default or only tunes upstream's own
implementation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from volplane.base.backoff import Backoff
from volplane.base.settings import parse_seconds
from volplane.loops.leader_elect import ComponentLeaderElection
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.profile import DEFAULT, SchedulerProfile, ScoreWeights
from volplane.scheduler.unschedulable_pods import BACKOFF

API_VERSION, KIND = "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"

_SCORES = {  # plugin → field of ScoreWeights
    "NodeResourcesFit": "resources",
    "InterPodAffinity": "pod_affinity",
    "PodTopologySpread": "spread",
    "NodeAffinity": "node_affinity",
    "TaintToleration": "taints",
}
_FILTERS = {filter.name: filter for filter in FILTERS}
_PREEMPTION = "DefaultPreemption"
# These always run here: extension point → plugin.
_REQUIRED = {"preEnqueue": "SchedulingGates", "queueSort": "PrioritySort", "bind": "DefaultBinder"}
# Upstream's defaults of which this scheduler has nothing.
_ABSENT = frozenset(
    {
        "DynamicResources",
        "GangScheduling",
        "ImageLocality",
        "NodeDeclaredFeatures",
        "NodeResourcesBalancedAllocation",
    }
)
_PLUGINS = {*_FILTERS, *_SCORES, _PREEMPTION, *_REQUIRED.values(), *_ABSENT}
_ALL = "*"
# Upstream's default arguments. Others are refused, except those that are read here.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    _PREEMPTION: {"minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100},
    "DynamicResources": {"filterTimeout": "10s", "bindingTimeout": "10m0s"},
    "InterPodAffinity": {"hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": False},
    "NodeAffinity": {},
    "NodeResourcesBalancedAllocation": {
        "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
    },
    "NodeResourcesFit": {
        "scoringStrategy": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
        }
    },
    "PodTopologySpread": {"defaultingType": "System"},
    "VolumeBinding": {},
}
_BIND_TIMEOUT = "bindTimeoutSeconds"
_FLAG = re.compile(r"--leader-elect-([a-z-]+)")


class BadConfiguration(ValueError):
    """A configuration that cannot be used, with the field and the reason."""


class _Wire(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """A part of the file."""


class _Plugin(_Wire, frozen=True):
    name: str
    weight: int = 0


class _PluginSet(_Wire, frozen=True):
    enabled: tuple[_Plugin, ...] = ()
    disabled: tuple[_Plugin, ...] = ()


class _Plugins(_Wire, frozen=True):
    multi_point: _PluginSet = _PluginSet()
    pre_enqueue: _PluginSet = _PluginSet()
    queue_sort: _PluginSet = _PluginSet()
    pre_filter: _PluginSet = _PluginSet()
    filter: _PluginSet = _PluginSet()
    post_filter: _PluginSet = _PluginSet()
    pre_score: _PluginSet = _PluginSet()
    score: _PluginSet = _PluginSet()
    reserve: _PluginSet = _PluginSet()
    permit: _PluginSet = _PluginSet()
    pre_bind: _PluginSet = _PluginSet()
    bind: _PluginSet = _PluginSet()
    post_bind: _PluginSet = _PluginSet()


class _PluginArguments(_Wire, frozen=True):
    name: str
    args: dict[str, Any] = {}


class _Profile(_Wire, frozen=True):
    scheduler_name: str | None = None
    percentage_of_nodes_to_score: int | None = None
    plugins: _Plugins = _Plugins()
    plugin_config: tuple[_PluginArguments, ...] = ()


class _LeaderElection(_Wire, frozen=True):
    leader_elect: bool | None = None
    lease_duration: str | None = None
    renew_deadline: str | None = None
    retry_period: str | None = None
    resource_lock: str | None = None
    resource_name: str | None = None
    resource_namespace: str | None = None


class _ClientConnection(_Wire, frozen=True):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float | None = None
    burst: int | None = None


class _Configuration(_Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    parallelism: int | None = None
    leader_election: _LeaderElection = _LeaderElection()
    client_connection: _ClientConnection = _ClientConnection()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    percentage_of_nodes_to_score: int | None = None
    pod_initial_backoff_seconds: int | None = None
    pod_max_backoff_seconds: int | None = None
    delay_cache_until_active: bool = False
    profiles: tuple[_Profile, ...] = ()
    extenders: tuple[dict[str, Any], ...] = ()


class SchedulerConfiguration(Struct, frozen=True):
    profiles: tuple[SchedulerProfile, ...]
    election: Mapping[str, Any]  # the fields of ComponentLeaderElection that the file has
    kubeconfig: str = ""
    backoff: Backoff = BACKOFF
    ignored: tuple[str, ...] = ()  # what the file has and nothing here uses


def read_configuration(document: object) -> SchedulerConfiguration:
    """Check and convert the parsed file. Raises BadConfiguration."""
    try:
        given = msgspec.convert(document, _Configuration)
    except msgspec.ValidationError as error:
        raise BadConfiguration(str(error).replace("`$.", "`")) from error
    if (given.api_version, given.kind) != (API_VERSION, KIND):
        raise BadConfiguration(
            f"apiVersion and kind must be {API_VERSION} and {KIND}, "
            f"not {given.api_version!r} and {given.kind!r}"
        )
    if given.extenders:
        raise BadConfiguration("extenders: not supported")
    profiles = given.profiles or (_Profile(),)
    if len(profiles) == 1 and profiles[0].scheduler_name is None:
        profiles = (structs.replace(profiles[0], scheduler_name=DEFAULT),)
    names = [profile.scheduler_name for profile in profiles]
    for at, name in enumerate(names):
        if not name:
            raise BadConfiguration(f"profiles[{at}].schedulerName: Required value")
        if name in names[:at]:
            raise BadConfiguration(f"profiles[{at}].schedulerName: Duplicate value: {name!r}")
    made = tuple(_read_profile(f"profiles[{at}]", profile, given) for at, profile in enumerate(profiles))
    return SchedulerConfiguration(
        made,
        _read_election(given.leader_election),
        given.client_connection.kubeconfig,
        _read_backoff(given),
        tuple(_list_ignored(given, profiles)),
    )


# --- profiles


def _read_profile(path: str, given: _Profile, whole: _Configuration) -> SchedulerProfile:
    field, percentage = f"{path}.percentageOfNodesToScore", given.percentage_of_nodes_to_score
    if percentage is None:
        field, percentage = "percentageOfNodesToScore", whole.percentage_of_nodes_to_score or 0
    if not 0 <= percentage <= 100:
        raise BadConfiguration(f"{field}: Invalid value: {percentage}: not in valid range [0-100]")
    _check_names(f"{path}.plugins", given.plugins)
    chosen = _ChosenPlugins(f"{path}.plugins", given.plugins)
    for point, plugin in _REQUIRED.items():
        if plugin not in chosen.list_enabled(point, {plugin: 1}):
            raise BadConfiguration(f"{path}.plugins.{point}: {plugin} cannot be disabled here")
    filters = chosen.list_enabled("filter", dict.fromkeys(_FILTERS, 0))
    usual = ScoreWeights()
    scores = chosen.list_enabled("score", {name: getattr(usual, field) for name, field in _SCORES.items()})
    return SchedulerProfile(
        given.scheduler_name or DEFAULT,
        tuple(filter for filter in FILTERS if filter.name in filters),
        ScoreWeights(**{field: scores.get(name, 0) for name, field in _SCORES.items()}),
        preempts=_PREEMPTION in chosen.list_enabled("postFilter", {_PREEMPTION: 0}),
        percentage=percentage,
        **_read_arguments(f"{path}.pluginConfig", given.plugin_config),
    )


def _check_names(path: str, plugins: _Plugins) -> None:
    separate = {"multiPoint", "filter", "score", "postFilter", *_REQUIRED}
    extends = {"filter": {*_FILTERS, *_ABSENT}, "score": {*_SCORES, *_ABSENT}, "postFilter": {_PREEMPTION}}
    extends |= {point: {plugin} for point, plugin in _REQUIRED.items()}
    for point, given in _list_points(plugins):
        where = f"{path}.{point}"
        if point not in separate and (given.enabled or given.disabled):
            raise BadConfiguration(
                f"{where}: cannot be configured separately; use multiPoint, filter, score or postFilter"
            )
        for at, plugin in enumerate(given.enabled):
            if plugin.weight < 0:
                raise BadConfiguration(
                    f"{where}.enabled[{at}].weight: Invalid value: {plugin.weight}: must be 0 or greater"
                )
        for plugin in (*given.enabled, *given.disabled):
            if plugin.name == _ALL and plugin not in given.enabled:
                continue
            if plugin.name not in _PLUGINS:
                known = ", ".join(sorted(_PLUGINS))
                raise BadConfiguration(f"{where}: unknown plugin {plugin.name!r}; there are: {known}")
            if plugin in given.enabled and plugin.name not in extends.get(point, _PLUGINS):
                raise BadConfiguration(f"{where}: plugin {plugin.name!r} does not extend {point}")


def _list_points(plugins: _Plugins) -> Iterator[tuple[str, _PluginSet]]:
    for field in structs.fields(plugins):
        yield field.encode_name, getattr(plugins, field.name)


class _ChosenPlugins:
    """The plugins of a profile, as upstream merges them: its defaults without those that are disabled, then
    those of `multiPoint`, then those of the extension point.
    """

    def __init__(self, path: str, plugins: _Plugins) -> None:
        self._path = path
        self._points = dict(_list_points(plugins))

    def list_enabled(self, point: str, defaults: Mapping[str, int]) -> dict[str, int]:
        """Plugin → weight, of those that extend the point. `defaults`: all that do, with their weights."""
        everywhere, here = self._points["multiPoint"], self._points[point]
        disabled = {plugin.name for plugin in (*everywhere.disabled, *here.disabled)}
        found = {} if _ALL in disabled else {n: w for n, w in defaults.items() if n not in disabled}
        hidden = {plugin.name for plugin in here.disabled}
        for plugin in everywhere.enabled:
            if plugin.name in defaults and not hidden & {_ALL, plugin.name}:
                found[plugin.name] = plugin.weight or 1
        for plugin in here.enabled:
            found[plugin.name] = plugin.weight or 1
        return found


def _read_arguments(path: str, given: tuple[_PluginArguments, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for at, each in enumerate(given):
        where = f"{path}[{at}]"
        if each.name in (other.name for other in given[:at]):
            raise BadConfiguration(f"{where}.name: Duplicate value: {each.name!r}")
        if each.name not in _ARGUMENTS:
            raise BadConfiguration(f"{where}: plugin {each.name!r} has no arguments")
        arguments = {k: v for k, v in each.args.items() if k not in ("apiVersion", "kind")}
        if each.name == "VolumeBinding" and (seconds := arguments.pop(_BIND_TIMEOUT, None)) is not None:
            if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
                raise BadConfiguration(
                    f"{where}.args.{_BIND_TIMEOUT}: Invalid value: {seconds!r}: must be a number from 0 on"
                )
            options["bind_timeout"] = float(seconds)
        usual = _ARGUMENTS[each.name]
        for name, value in arguments.items():
            if name not in usual:
                raise BadConfiguration(f"{where}.args.{name}: not supported")
            if value != usual[name]:
                raise BadConfiguration(f"{where}.args.{name}: only the default {usual[name]!r} is supported")
    return options


# --- the rest


def _read_election(given: _LeaderElection) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.leader_elect is not None:
        found["leader_elect"] = given.leader_elect
    for name in ("lease_duration", "renew_deadline", "retry_period"):
        text = getattr(given, name)
        if text is not None:
            try:
                found[f"leader_elect_{name}"] = parse_seconds(text)
            except ValueError as error:
                raise BadConfiguration(f"leaderElection.{_camel(name)}: {error}") from error
    for name in ("resource_lock", "resource_name", "resource_namespace"):
        if getattr(given, name):
            found[f"leader_elect_{name}"] = getattr(given, name)
    try:
        ComponentLeaderElection(**found)
    except ValueError as error:
        raise BadConfiguration(_FLAG.sub(_name_field, str(error))) from error
    return found


def _name_field(flag: re.Match[str]) -> str:
    """The field that is set by a flag of leader election."""
    return f"leaderElection.{_camel(flag[1].replace('-', '_'))}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _read_backoff(given: _Configuration) -> Backoff:
    first, longest = given.pod_initial_backoff_seconds, given.pod_max_backoff_seconds
    if first is not None and first < 1:
        raise BadConfiguration(f"podInitialBackoffSeconds: Invalid value: {first}: must be greater than 0")
    made = Backoff(BACKOFF.first if first is None else first, BACKOFF.longest if longest is None else longest)
    if made.longest < made.first:
        raise BadConfiguration(
            f"podMaxBackoffSeconds: Invalid value: {made.longest:g}: "
            "must be greater than or equal to PodInitialBackoffSeconds"
        )
    return made


def _list_ignored(given: _Configuration, profiles: tuple[_Profile, ...]) -> Iterator[str]:
    connection = given.client_connection
    tuning = {
        "parallelism": given.parallelism,
        "enableProfiling": given.enable_profiling,
        "enableContentionProfiling": given.enable_contention_profiling,
        "delayCacheUntilActive": given.delay_cache_until_active,
        "clientConnection.acceptContentTypes": connection.accept_content_types,
        "clientConnection.contentType": connection.content_type,
        "clientConnection.qps": connection.qps,
        "clientConnection.burst": connection.burst,
    }
    yield from (name for name, value in tuning.items() if value)
    absent = {
        plugin.name: None
        for profile in profiles
        for _, point in _list_points(profile.plugins)
        for plugin in point.enabled
        if plugin.name in _ABSENT
    }
    yield from (f"plugin {name}" for name in absent)
