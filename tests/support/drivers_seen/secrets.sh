#!/bin/sh
# secrets.sh DRIVER PROVIDER [FLAG…]: secrets-store-csi-driver beside its test provider, which has a network of its own
# because its port is always the same.
driver=$1 provider=$2
shift 2
mkdir -p "$STATE_DIR/providers"
unshare --net "$provider" --endpoint="unix://$STATE_DIR/providers/e2e-provider.sock" &
exec "$driver" "$@" --endpoint="$CSI_ENDPOINT" --nodeid="$NODE_ID" --provider-volume="$STATE_DIR/providers" --metrics-addr=127.0.0.1:0
