"""Validation of a definition: its spec, its schemas, its rules."""
