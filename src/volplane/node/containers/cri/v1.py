"""All messages of CRI v1 under one name: `from volplane.node.containers.cri import v1`."""

from volplane.node.containers.cri.proto.common_pb2 import *  # noqa: F403
from volplane.node.containers.cri.proto.container_pb2 import *  # noqa: F403
from volplane.node.containers.cri.proto.image_pb2 import *  # noqa: F403
from volplane.node.containers.cri.proto.runtime_pb2 import *  # noqa: F403
from volplane.node.containers.cri.proto.sandbox_pb2 import *  # noqa: F403
