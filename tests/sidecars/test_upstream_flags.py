"""A sidecar's command line as upstream's manifests write it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from volplane.cli import volplane

LOGGING = ["-v=5", "--v=5", "--logtostderr", "--log_dir=/tmp", "--automaxprocs", "--automaxprocs=false"]


@pytest.mark.parametrize("verb", ["attacher", "provisioner", "resizer", "snapshotter", "liveness"])
def test_flags_of_upstreams_logging_are_taken_and_others_are_not(verb: str) -> None:
    # Both of them together are refused, so that nothing is started.
    refused = ["--http-endpoint=:1", "--metrics-address=:2"]
    known = CliRunner().invoke(volplane, [verb, *LOGGING, *refused])
    assert "`--http-endpoint` can be" in known.output
    unknown = CliRunner().invoke(volplane, [verb, "--vv=5", *refused])
    assert "No such option" in unknown.output


def test_the_registrars_old_liveness_check_passes() -> None:
    old = ["--mode=kubelet-registration-probe", "--connection-timeout=10s", "--enable-pprof"]
    needed = ["--kubelet-registration-path=/csi.sock"]
    assert CliRunner().invoke(volplane, ["registrar", *LOGGING, *old, *needed]).exit_code == 0
    assert CliRunner().invoke(volplane, ["registrar", *LOGGING, *old]).exit_code == 2
