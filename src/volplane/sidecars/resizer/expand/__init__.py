"""Expands the volumes of claims that request more storage."""
