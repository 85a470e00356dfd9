"""The kubelet's volume manager: it mounts what the pods of this node need and unmounts the rest.

`resolve_volumes` reads what a pod needs, `state` holds desired and actual state, `plan` compares them,
`manager` is the reconciler, `operations` makes the calls to volume plugins, `expansion` follows disks that
grow, `reconstruct` reads after a restart what is on disk.
"""
