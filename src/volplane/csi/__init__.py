"""CSI v1.12 and plugin registration v1: messages, calls, and how their outcomes are judged.

`v1` has the messages, `client.Channel` makes calls, `outcome` says what an error means, `convert` speaks
Kubernetes' access modes, `registration` is both ends of the kubelet's plugin registration. Serving a driver
is `volplane.sdk`.
"""

import os

# gRPC's C core writes to stderr by itself, past every log of ours; it reads this once, when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
