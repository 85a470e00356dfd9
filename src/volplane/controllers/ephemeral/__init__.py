"""Generic ephemeral volumes: a claim made for one pod, and gone with it."""
