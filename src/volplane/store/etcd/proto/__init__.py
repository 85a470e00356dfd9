"""The wire: `*.proto` is ours, `*_pb2.py[i]` are made from it by `python -m volplane.store.etcd.proto`."""
