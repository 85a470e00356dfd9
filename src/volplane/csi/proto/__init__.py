"""The wire: `*.proto` is ours, `*_pb2.py[i]` are generated from it by `python -m volplane.csi.proto`.

Use the messages through `volplane.csi.v1`; nothing else imports from here.
"""
