"""The objects of one defined kind in one version, through the same verbs as every other kind."""
