"""What a driver's command gets of the environment in which `up` was started."""

from __future__ import annotations

import pytest

from volplane.cluster.external_driver.caller_environment import add_cloud, select_variables

CLOUD = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "k"}


def test_the_callers_variables_are_kept_except_those_of_the_session() -> None:
    given = {
        "LOG_LEVEL": "debug",
        "HTTP_PROXY": "http://proxy",
        "PATH": "/bin",
        "HOME": "/root",
        "NODE_ID": "mine",  # of an instance
        "KUBERNETES_SERVICE_HOST": "192.0.2.1",
        "KUBECONFIG": "/other",
        "VOLPLANE_FAILPOINT": "x",
        "BASH_FUNC_f%%": "() { :; }",
    }
    assert select_variables(given) == {"LOG_LEVEL": "debug", "HTTP_PROXY": "http://proxy"}


@pytest.mark.parametrize("name", ["AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_EC2_ENDPOINT", "AWS_ACCESS_KEY_ID"])
def test_a_caller_who_has_chosen_a_cloud_keeps_it(name: str) -> None:
    assert add_cloud({name: "mine"}, CLOUD) == {name: "mine"}


def test_other_drivers_find_the_disk_service() -> None:
    assert add_cloud({"AWS_REGION": "eu-west-1"}, {**CLOUD, "AWS_REGION": "us-east-1"}) == {
        **CLOUD,
        "AWS_REGION": "eu-west-1",
    }
