"""CSI v1.12 and plugin registration v1: messages, calls, and what their errors mean.

`v1` has the messages, `client.CsiChannel` makes calls, `outcome` classifies errors, `convert` translates
Kubernetes' access modes, `registration` is both ends of the kubelet's plugin registration. `volplane.sdk`
serves drivers.
"""

import os

# gRPC's C core writes to stderr and not to our log; it reads this once, when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
