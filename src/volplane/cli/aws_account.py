"""The account at the disk service, from the environment variables that the AWS CLI reads."""

from __future__ import annotations

import os

from volplane.drivers import ebs


def aws_account() -> ebs.AwsAccount:
    env = os.environ.get
    region = env("AWS_REGION", env("AWS_DEFAULT_REGION", "us-east-1"))
    endpoint = env("AWS_ENDPOINT_URL_EC2", env("AWS_ENDPOINT_URL", ""))
    return ebs.AwsAccount(
        endpoint,
        region,
        env("AWS_ACCESS_KEY_ID", ""),
        env("AWS_SECRET_ACCESS_KEY", ""),
        env("AWS_SESSION_TOKEN", ""),
    )
