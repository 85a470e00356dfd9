"""KubeSchedulerConfiguration: what it chooses, and what is refused with the field and the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controllers.objects import claim, node, pod
from tests.loops.inprocess import until
from tests.scheduler import test_scheduler_plan as facts
from tests.support import peers
from tests.support.scheduler_env import scheduler_env
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Event
from volplane.api.meta import Resource
from volplane.base.backoff import Backoff
from volplane.scheduler.configuration import (
    API_VERSION,
    KIND,
    BadConfiguration,
    SchedulerConfiguration,
    read_configuration,
)
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.plan import Placement, Unschedulable, decide
from volplane.scheduler.profile import SchedulerProfile, ScoreWeights
from volplane.scheduler.volumes import Bindings


def document(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, **fields}


def read(**fields: Any) -> SchedulerConfiguration:
    return read_configuration(document(**fields))


def profile(**plugins: Any) -> SchedulerProfile:
    """The profile of these plugins."""
    (made,) = read(profiles=[{"plugins": plugins}]).profiles
    return made


def names(made: SchedulerProfile) -> set[str]:
    return {filter.name for filter in made.filters}


ALL = {filter.name for filter in FILTERS}
KEPT = [{"name": name} for name in ("SchedulingGates", "PrioritySort", "DefaultBinder")]


def test_a_file_without_profiles_has_upstreams_defaults() -> None:
    made = read()
    assert made == SchedulerConfiguration((SchedulerProfile(),), {})


def test_plugins_are_chosen_by_name_and_extension_point() -> None:
    assert names(profile(filter={"disabled": [{"name": "NodePorts"}]})) == ALL - {"NodePorts"}
    assert names(profile(multiPoint={"disabled": [{"name": "NodePorts"}]})) == ALL - {"NodePorts"}
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeName"}, {"name": "VolumeBinding"}]}
    assert names(profile(filter=only)) == {"NodeName", "VolumeBinding"}
    both = {"disabled": [{"name": "*"}], "enabled": [{"name": "TaintToleration", "weight": 7}, *KEPT]}
    made = profile(multiPoint=both)
    assert names(made) == {"TaintToleration"}
    assert made.weights == ScoreWeights(0, 0, 0, 0, taints=7)
    assert not made.preempts
    hidden = profile(multiPoint=both, score={"disabled": [{"name": "TaintToleration"}]})
    assert (names(hidden), hidden.weights.taints) == ({"TaintToleration"}, 0)


def test_scores_have_weights() -> None:
    heavy = {"disabled": [{"name": "NodeAffinity"}], "enabled": [{"name": "PodTopologySpread", "weight": 9}]}
    assert profile(score=heavy).weights == ScoreWeights(spread=9, node_affinity=0)
    assert profile(score={"enabled": [{"name": "InterPodAffinity"}]}).weights == ScoreWeights(pod_affinity=1)


def test_preemption_can_be_disabled() -> None:
    made = profile(postFilter={"disabled": [{"name": "DefaultPreemption"}]})
    assert not made.preempts
    decision = decide(facts.pod(cpu="9"), facts.make_snapshot(facts.node("n")), profile=made)
    assert isinstance(decision, Unschedulable)
    assert decision.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_disabled_filter_refuses_no_node() -> None:
    around = facts.make_snapshot(facts.node("n", unschedulable=True))
    assert isinstance(decide(facts.pod(), around), Unschedulable)
    made = profile(filter={"disabled": [{"name": "NodeUnschedulable"}, {"name": "TaintToleration"}]})
    assert isinstance(decide(facts.pod(), around, profile=made), Placement)


@pytest.mark.parametrize(
    "claims",
    [(), (facts.claim("data", cls="now"),), (facts.claim("data"),)],
    ids=["none", "unbound", "delayed"],
)
def test_without_volume_binding_a_pod_does_not_wait_for_its_claims(claims: tuple[Resource, ...]) -> None:
    around = facts.make_snapshot(facts.node("n"), *claims)
    # VolumeRestrictions refuses a claim that does not exist.
    made = profile(multiPoint={"disabled": [{"name": "VolumeBinding"}, {"name": "VolumeRestrictions"}]})
    decision = decide(facts.pod("p", "data"), around, profile=made)
    assert decision == Placement("n", Bindings(), 1)


@pytest.mark.parametrize(
    ("percentage", "nodes", "most"), [(0, 1000, 100), (50, 1000, 500), (100, 1000, 1000), (5, 1000, 100)]
)
def test_a_share_of_the_nodes_is_enough(percentage: int, nodes: int, most: int) -> None:
    whole = read(percentageOfNodesToScore=percentage, profiles=[{}])
    own = read(percentageOfNodesToScore=1, profiles=[{"percentageOfNodesToScore": percentage}])
    assert whole.profiles == own.profiles
    assert whole.profiles[0].most_feasible(nodes) == most


def test_the_other_fields() -> None:
    made = read(
        clientConnection={"kubeconfig": "/etc/scheduler.conf", "qps": 50, "burst": 100},
        leaderElection={"leaderElect": True, "leaseDuration": "30s", "resourceName": "mine"},
        podInitialBackoffSeconds=2,
        podMaxBackoffSeconds=20,
        parallelism=16,
        profiles=[
            {
                "schedulerName": "default-scheduler",
                "pluginConfig": [{"name": "VolumeBinding", "args": {"bindTimeoutSeconds": 30}}],
            },
            {"schedulerName": "other"},
        ],
    )
    assert made.kubeconfig == "/etc/scheduler.conf"
    assert made.election == {
        "leader_elect": True,
        "leader_elect_lease_duration": 30.0,
        "leader_elect_resource_name": "mine",
    }
    assert made.backoff == Backoff(2, 20)
    assert [(p.scheduler_name, p.bind_timeout) for p in made.profiles] == [
        ("default-scheduler", 30.0),
        ("other", 600.0),
    ]
    assert made.ignored == ("parallelism", "clientConnection.qps", "clientConnection.burst")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"kind": "Nonsense"},
            "apiVersion and kind must be kubescheduler.config.k8s.io/v1 and KubeScheduler",
        ),
        ({"nonsense": 1}, "unknown field `nonsense`"),
        ({"profiles": [{"plugin": {}}]}, r"unknown field `plugin` - at `profiles\[0\]`"),
        ({"profiles": "x"}, "Expected `array`, got `str` - at `profiles`"),
        ({"extenders": [{}]}, "extenders: not supported"),
        ({"profiles": [{}, {}]}, r"profiles\[0\].schedulerName: Required value"),
        (
            {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
            r"profiles\[1\].schedulerName: Duplicate value: 'a'",
        ),
        ({"profiles": [{"schedulerName": ""}]}, r"profiles\[0\].schedulerName: Required value"),
        ({"percentageOfNodesToScore": 101}, "^percentageOfNodesToScore: Invalid value: 101"),
        (
            {"profiles": [{"percentageOfNodesToScore": 101}]},
            r"^profiles\[0\].percentageOfNodesToScore: Invalid value: 101",
        ),
        ({"podInitialBackoffSeconds": 0}, "podInitialBackoffSeconds: Invalid value: 0"),
        ({"podInitialBackoffSeconds": 20}, "podMaxBackoffSeconds: Invalid value: 10: must be greater than"),
        ({"leaderElection": {"leaseDuration": "x"}}, "leaderElection.leaseDuration: "),
        (
            {"leaderElection": {"resourceLock": "endpoints"}},
            "^leaderElection.resourceLock must be leases, not 'endpoints'$",
        ),
        (
            {"leaderElection": {"leaseDuration": "5s"}},
            "^leaderElection.leaseDuration must be greater than leaderElection.renewDeadline$",
        ),
        (
            {"leaderElection": {"renewDeadline": "2s"}},
            "^leaderElection.renewDeadline must be greater than 1.2 times leaderElection.retryPeriod$",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfiguration, match=why):
        read_configuration({**document(), **given})


@pytest.mark.parametrize(
    ("plugins", "why"),
    [
        ({"filter": {"enabled": [{"name": "Mine"}]}}, r"plugins.filter: unknown plugin 'Mine'; there are: "),
        ({"filter": {"disabled": [{"name": "Mine"}]}}, r"plugins.filter: unknown plugin 'Mine'; there are: "),
        ({"score": {"enabled": [{"name": "NodeName"}]}}, "plugin 'NodeName' does not extend score"),
        ({"filter": {"enabled": [{"name": "*"}]}}, r"unknown plugin '\*'"),
        ({"bind": {"disabled": [{"name": "*"}]}}, "plugins.bind: DefaultBinder cannot be disabled here"),
        (
            {"multiPoint": {"disabled": [{"name": "*"}]}},
            "preEnqueue: SchedulingGates cannot be disabled here",
        ),
        (
            {"preFilter": {"disabled": [{"name": "NodeName"}]}},
            "plugins.preFilter: cannot be configured separately; use multiPoint, filter, score or postFilter",
        ),
        (
            {"score": {"enabled": [{"name": "NodeAffinity"}, {"name": "TaintToleration", "weight": -5}]}},
            r"plugins.score.enabled\[1\].weight: Invalid value: -5: must be 0 or greater",
        ),
    ],
)
def test_plugins_that_are_refused(plugins: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfiguration, match=why):
        profile(**plugins)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("NodeName", {}, "plugin 'NodeName' has no arguments"),
        ("VolumeBinding", {"bindTimeoutSeconds": -1}, "bindTimeoutSeconds: Invalid value: -1"),
        ("VolumeBinding", {"bindTimeoutSeconds": True}, "bindTimeoutSeconds: Invalid value: True"),
        ("VolumeBinding", {"shape": []}, "args.shape: not supported"),
        ("InterPodAffinity", {"hardPodAffinityWeight": 5}, "only the default 1 is supported"),
    ],
)
def test_arguments_that_are_refused(name: str, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfiguration, match=why):
        read(profiles=[{"pluginConfig": [{"name": name, "args": arguments}]}])


def test_the_arguments_of_a_plugin_are_given_once() -> None:
    twice = [{"name": "VolumeBinding", "args": {"bindTimeoutSeconds": seconds}} for seconds in (1, 2)]
    with pytest.raises(BadConfiguration, match=r"pluginConfig\[1\].name: Duplicate value: 'VolumeBinding'"):
        read(profiles=[{"pluginConfig": twice}])


@pytest.mark.virtual
async def test_each_pod_is_scheduled_by_the_profile_of_its_scheduler_name() -> None:
    made = read(
        profiles=[
            {"schedulerName": "strict"},
            {"schedulerName": "lenient", "plugins": {"filter": {"disabled": [{"name": "NodeAffinity"}]}}},
        ]
    )
    async with scheduler_env(node("a"), profiles=made.profiles) as env:
        for name in ("strict", "lenient", "default-scheduler"):
            picky: dict[str, Any] = {"nodeSelector": {"disk": "ssd"}, "schedulerName": name}
            await env.client.create(pod(name, **picky))
        await env.wait_until_scheduled("lenient")

        async def is_refused() -> bool:
            return await env.condition("strict") is not None

        await until(is_refused)
        assert await env.condition("default-scheduler") is None

        async def sources() -> bool:
            events = await env.client.list(Event, "default")
            seen = {(e.involved_object.name, e.reason, e.source.component) for e in events}
            return seen == {("lenient", "Scheduled", "lenient"), ("strict", "FailedScheduling", "strict")}

        assert await until(sources)


@pytest.mark.virtual
async def test_without_volume_binding_a_pod_is_bound_before_its_claims() -> None:
    made = profile(multiPoint={"disabled": [{"name": "VolumeBinding"}]})
    async with scheduler_env(node("a"), profiles=[made]) as env:
        await env.client.create(claim("unbound", cls="now"))
        await env.client.create(claim("delayed", cls="late"))
        await env.client.create(pod("p", "unbound", "delayed"))
        assert await env.wait_until_scheduled("p") == "a"
        assert SELECTED_NODE_ANNOTATION not in (await env.claim("delayed")).metadata.annotations


def volplane(directory: Path, *words: str) -> str:
    command = [sys.executable, "-m", "volplane", "scheduler", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=directory)
    assert done.returncode != 0
    return done.stderr


def test_the_command_names_the_file_and_the_field(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(
        yaml.safe_dump(document(profiles=[{"plugins": {"filter": {"enabled": [{"name": "X"}]}}}]))
    )
    told = volplane(tmp_path, f"--config={file}")
    assert f"--config {file}: profiles[0].plugins.filter: unknown plugin 'X'; there are:" in told
    file.write_text("{")
    assert f"--config {file} is not YAML" in volplane(tmp_path, f"--config={file}")
    assert "No such file" in volplane(tmp_path, "--config=none.yaml")
    told = volplane(tmp_path, f"--config={file}", "--scheduler-name=x")
    assert "--scheduler-name cannot be used with --config: set it in the file's profiles" in told


@pytest.mark.slow
@pytest.mark.peer("kube-scheduler")
def test_upstreams_own_defaults_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "defaults.yaml"
    subprocess.run(
        [peers.path("kube-scheduler"), f"--write-config-to={file}", "--master=http://127.0.0.1:1"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        timeout=120,
    )
    made = read_configuration(yaml.safe_load(file.read_text()))
    assert [profile.scheduler_name for profile in made.profiles] == ["default-scheduler"]
    assert names(made.profiles[0]) == ALL
    assert made.profiles[0].weights == ScoreWeights()
    assert made.profiles[0].preempts
