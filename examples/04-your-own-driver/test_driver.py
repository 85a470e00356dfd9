"""Tests of the driver in a cluster. Run as root: `pytest --csi-driver driver.yaml`"""

import pytest


def test_a_volume_keeps_its_data_when_its_pod_moves(volplane_claim, volplane_pod):
    data = volplane_claim(mode="ReadWriteMany")
    volplane_pod(data, node="worker-1").write("line", "hello")
    assert volplane_pod(data, node="worker-2").read("line") == "hello"


def test_a_retried_create_makes_one_volume(volplane_cluster, volplane_claim):
    lost = volplane_cluster.cut("CreateVolume", after=True)  # the driver's answer is lost
    volplane_claim().wait_until_bound()
    assert lost.wait_for_call().code == "UNAVAILABLE"
    asked = volplane_cluster.calls_to("CreateVolume")
    assert [call.code for call in asked] == ["UNAVAILABLE", "OK"]
    assert asked[0].request == asked[1].request


@pytest.mark.parametrize("rpc", ["CreateVolume", "NodePublishVolume"])
def test_the_driver_is_killed_at_a_call(volplane_cluster, volplane_claim, volplane_pod, rpc):
    killed = volplane_cluster.kill_at(rpc)
    data = volplane_claim()
    volplane_pod(data).write("line", "hello")
    killed.wait_for_call()
    assert volplane_pod(data).read("line") == "hello"


def test_a_pod_waits_for_its_volume(volplane_cluster, volplane_claim, volplane_pod):
    data = volplane_claim()
    with volplane_cluster.hold("NodePublishVolume") as held:
        waiting = volplane_pod(data, wait=False)
        held.wait_for_call()
        assert waiting.get().status.phase == "Pending"
    waiting.wait()


def test_data_survives_the_loss_of_a_node(volplane_cluster, volplane_claim, volplane_pod):
    data = volplane_claim(mode="ReadWriteMany")
    volplane_pod(data, node="worker-2").write("line", "hello")
    volplane_cluster.crash("worker-2")
    assert volplane_pod(data, node="worker-1").read("line") == "hello"
    volplane_cluster.revive("worker-2")
