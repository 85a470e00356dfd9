"""etcd's messages: `python -m volplane.store.etcd.proto` generates `*_pb2.py[i]` from our `*.proto` files."""
