"""Build etcd's request messages, and convert its records. Pure functions."""

from __future__ import annotations

from volplane.store.contract import StoreRecord
from volplane.store.etcd.keys import EtcdKeys, Range
from volplane.store.etcd.proto import kv_pb2
from volplane.store.etcd.proto import rpc_pb2 as pb

NEVER = -1  # a revision that no record has

_EQUAL, _GREATER = pb.Compare.CompareResult.EQUAL, pb.Compare.CompareResult.GREATER
_VERSION, _CREATE, _MOD = (
    pb.Compare.CompareTarget.VERSION,
    pb.Compare.CompareTarget.CREATE,
    pb.Compare.CompareTarget.MOD,
)


def create(key: bytes, value: bytes) -> pb.TxnRequest:
    return pb.TxnRequest(compare=[absent(key)], success=[put(key, value)])


def update(key: bytes, value: bytes, revision: int) -> pb.TxnRequest:
    return pb.TxnRequest(compare=[_at(key, revision)], success=[put(key, value)], failure=[read(key)])


def delete(key: bytes, revision: int) -> pb.TxnRequest:
    """Delete a key; revision 0: at any revision."""
    exists = pb.Compare(result=_GREATER, target=_VERSION, key=key, version=0)
    gone = pb.DeleteRangeRequest(key=key, prev_kv=True)
    return pb.TxnRequest(
        compare=[_at(key, revision) if revision else exists],
        success=[pb.RequestOp(request_delete_range=gone)],
        failure=[read(key)],
    )


def claim(keys: EtcdKeys, mark: bytes) -> pb.TxnRequest:
    """Set the owner's mark if the prefix is empty; else read the mark and a key."""
    start, end = keys.everything
    # True for an empty range: it is compared like a key that was never created.
    empty = pb.Compare(result=_EQUAL, target=_CREATE, key=start, range_end=end, create_revision=0)
    some = pb.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
    return pb.TxnRequest(
        compare=[absent(keys.mark), empty],
        success=[put(keys.mark, mark)],
        failure=[read(keys.mark), pb.RequestOp(request_range=some)],
    )


def newest(keys: EtcdKeys) -> pb.RangeRequest:
    """The cheapest request: only its response header, with the newest revision, is used."""
    return pb.RangeRequest(key=keys.mark, count_only=True)


def page(keys: Range, *, limit: int = 0, revision: int = 0) -> pb.RangeRequest:
    return pb.RangeRequest(key=keys[0], range_end=keys[1], limit=limit, revision=revision)


def compact(revision: int) -> pb.CompactionRequest:
    return pb.CompactionRequest(revision=revision)


def record(keys: EtcdKeys, kv: kv_pb2.KeyValue) -> StoreRecord:
    return StoreRecord(keys.inner(kv.key), kv.value, kv.mod_revision, kv.create_revision)


def absent(key: bytes) -> pb.Compare:
    return pb.Compare(result=_EQUAL, target=_CREATE, key=key, create_revision=0)


def put(key: bytes, value: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def read(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def _at(key: bytes, revision: int) -> pb.Compare:
    known = revision if 0 < revision < 1 << 62 else NEVER  # clients may send any number
    return pb.Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=known)
