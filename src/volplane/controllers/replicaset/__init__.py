"""ReplicaSet: a number of pods of one template."""
