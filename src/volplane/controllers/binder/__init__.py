"""The persistent volume binder: bind claims to volumes, and reclaim released volumes."""
