"""Who owns which field of an object: server-side apply, and the record that every other write leaves.

- `fields`: sets of fields, in their wire form (FieldsV1)
- `types`: which parts of a kind's objects are owned one by one
- `compare` and `document`: how two objects differ (Structs, plain data); merging and pruning plain data
- `managed`: the entries of `metadata.managedFields` and how writes move fields between them
- `merging`: the apply itself; `lastapplied`: the way from client-side apply
- `ownership`: all of it for one kind
"""
