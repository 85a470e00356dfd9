"""All messages of CSI v1.12 under one name: `from volplane.csi import v1`."""

from volplane.csi.proto.controller_pb2 import *  # noqa: F403
from volplane.csi.proto.group_pb2 import *  # noqa: F403
from volplane.csi.proto.identity_pb2 import *  # noqa: F403
from volplane.csi.proto.metadata_pb2 import *  # noqa: F403
from volplane.csi.proto.node_pb2 import *  # noqa: F403
from volplane.csi.proto.snapshot_pb2 import *  # noqa: F403
from volplane.csi.proto.volume_pb2 import *  # noqa: F403
