"""Serving the objects of a custom kind in one version, through the same verbs as every other kind."""
