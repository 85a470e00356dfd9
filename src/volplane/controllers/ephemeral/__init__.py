"""Generic ephemeral volumes: a claim that is created for one pod and deleted with it."""
