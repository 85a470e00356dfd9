"""Deployment: replaces the pods of an old template by those of a new one, as fast as its strategy allows."""
