#!/bin/sh
# democratic.sh PROGRAM: democratic-csi with its local-hostpath driver. Every node keeps its own directories.
mkdir -p "$STATE_DIR/volumes"
cat > "$STATE_DIR/config.yaml" <<CONFIG
driver: local-hostpath
local-hostpath:
  shareBasePath: $STATE_DIR/volumes
  controllerBasePath: $STATE_DIR/volumes
  dirPermissionsMode: "0777"
  snapshots: {default_driver: filecopy}
CONFIG
export CSI_NODE_ID="$NODE_ID" # without it the node's id is the name of the machine
exec "$1" --driver-config-file="$STATE_DIR/config.yaml" --csi-version=1.9.0 --log-level=info \
  --csi-name=org.democratic-csi.local-hostpath --server-socket="$CSI_SOCKET"
