#!/bin/sh
# smb.sh PROGRAM: csi-driver-smb, whose shares are directories of this machine (see `mount` beside this file).
export EXPORTS="$SHARED_DIR/exports" PATH="$(dirname "$0"):$PATH"
mkdir -p "$EXPORTS/share"
program=$1
shift
exec "$program" --endpoint="$CSI_ENDPOINT" --nodeid="$NODE_ID" --working-mount-dir="$STATE_DIR" \
  --metrics-address=127.0.0.1:0 --enable-get-volume-stats=true -v=5 "$@"
