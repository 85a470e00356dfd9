"""DaemonSet: one pod on every node that is eligible."""
