"""Roles and bindings: what they allow, kept by subject and fed by the store's own events."""
