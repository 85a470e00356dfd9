"""Protection: a claim that a pod uses and a volume that is bound are kept while they are being deleted."""
