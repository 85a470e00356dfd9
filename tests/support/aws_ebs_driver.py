"""AWS's own EBS driver, deployed with upstream's files, without any change to them."""

from __future__ import annotations

from pathlib import Path

from tests.support import peers

PEER = "aws-ebs-csi-driver"
NAME = "ebs.csi.aws.com"
IMAGE = "public.ecr.aws/ebs-csi-driver/aws-ebs-csi-driver"


def manifests() -> Path:
    """The directory that upstream's instructions name for `kubectl apply -k`."""
    (found,) = peers.manifests(PEER, "overlays/stable/kustomization.yaml")
    return found.parent


def chart() -> Path:
    (found,) = peers.manifests(PEER, "aws-ebs-csi-driver/Chart.yaml")
    return found.parent


def image_option() -> str:
    return f"{IMAGE}={peers.path(PEER)}"
