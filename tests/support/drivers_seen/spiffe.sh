#!/bin/sh
# spiffe.sh PROGRAM: spiffe-csi, whose volumes are the directory with the socket of an agent.
mkdir -p "$STATE_DIR/agent"
exec "$1" -node-id "$NODE_ID" -workload-api-socket-dir "$STATE_DIR/agent" -csi-socket-path "$CSI_SOCKET"
