"""RBAC: roles and bindings, indexed by subject and kept up to date from the store."""
