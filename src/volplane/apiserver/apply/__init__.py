"""Field ownership: server-side apply, and the tracking of owners by all other writes.

- `fields`: sets of fields in their wire form (FieldsV1)
- `types`: which parts of a kind's objects have owners of their own
- `compare` and `document`: differences of two objects (Structs, plain data); merging and pruning of plain
  data
- `managed`: the entries of `metadata.managedFields`, and how writes move fields between them
- `merging`: the apply itself; `lastapplied`: migration from client-side apply
- `ownership`: all of it for one kind
"""
