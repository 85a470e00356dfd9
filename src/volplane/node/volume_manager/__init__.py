"""The kubelet's volume manager: it mounts what the pods of this node need and unmounts the rest.

`resolve_volumes` reads what a pod needs, `state` is the desired and actual state, `reducer` changes it,
`plan` compares both halves, `manager` is the reconciler, `operations` calls volume plugins, `expansion`
follows disks that grow, `reconstruct` reads after a restart what is on disk.
"""
