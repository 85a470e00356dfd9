"""What a kubelet's metrics tell about a volume."""

from __future__ import annotations

from volplane.explain.journey.measure import measure_calls, measure_usage, parse_samples
from volplane.explain.journey.model import CallMeasurement, Journey, JourneyOutcome, VolumeUsage
from volplane.explain.journey.render_text import list_measured

DRIVER = "ebs.csi.aws.com"
STAGE = f'driver_name="{DRIVER}",method_name="/csi.v1.Node/NodeStageVolume"'
TEXT = f"""
# HELP csi_operations_seconds [ALPHA] Container Storage Interface operation duration
# TYPE csi_operations_seconds histogram
csi_operations_seconds_bucket{{{STAGE},grpc_status_code="OK",migrated="false",le="0.1"}} 1
csi_operations_seconds_sum{{{STAGE},grpc_status_code="OK",migrated="false"}} 0.5
csi_operations_seconds_count{{{STAGE},grpc_status_code="OK",migrated="false"}} 3
csi_operations_seconds_sum{{{STAGE},grpc_status_code="Internal",migrated="false"}} 1.5
csi_operations_seconds_count{{{STAGE},grpc_status_code="Internal",migrated="false"}} 1
csi_operations_seconds_sum{{driver_name="other",method_name="/csi.v1.Node/NodeStageVolume"}} 9
csi_operations_seconds_count{{driver_name="other",method_name="/csi.v1.Node/NodeStageVolume"}} 9
csi_operations_seconds_count{{driver_name="{DRIVER}",method_name="/csi.v1.Node/NodeGetInfo"}} 0
kubelet_volume_stats_capacity_bytes{{namespace="default",persistentvolumeclaim="data"}} 1.048576e+06
kubelet_volume_stats_used_bytes{{namespace="default",persistentvolumeclaim="data"}} 2048
kubelet_volume_stats_used_bytes{{namespace="other",persistentvolumeclaim="data"}} 4096
"""


def test_calls_to_the_driver_are_summed_over_their_status_codes() -> None:
    assert measure_calls(TEXT, "worker-1", DRIVER) == (
        CallMeasurement("worker-1", "NodeStageVolume", 4, 0.5, failed=1),
    )


def test_the_usage_of_a_claim_is_that_of_its_namespace() -> None:
    assert measure_usage(TEXT, "worker-1", "default/data") == VolumeUsage("worker-1", 1048576, 2048)
    assert measure_usage(TEXT, "worker-1", "other/data") is None  # without a capacity it is not mounted
    assert measure_usage(TEXT, "worker-1", "default/dat") is None


def test_labels_may_contain_anything() -> None:
    assert list(
        parse_samples('a{b="x\\"}\\n\\\\",c="{1} 2"} 3 1700000000\nbad{ 1\nalone NaN_\n# a 1\nd 4')
    ) == [
        ("a", {"b": 'x"}\n\\', "c": "{1} 2"}, 3.0),
        ("d", {}, 4.0),
    ]


def test_what_was_measured_is_told_in_sentences() -> None:
    journey = Journey(
        "pvc/default/data",
        "u",
        "t",
        JourneyOutcome.IN_USE,
        calls=measure_calls(TEXT, "worker-1", DRIVER),
        usage=(VolumeUsage("worker-1", 1 << 30, 2048),),
    )
    assert list_measured(journey) == [
        "worker-1 has mounted it: 2 KiB of 1 GiB are used",
        "NodeStageVolume on worker-1 takes 500.0 ms on average of 4 calls for all volumes of the driver,"
        " 1 failed",
    ]
