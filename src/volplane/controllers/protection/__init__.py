"""Protection: a claim that a pod uses and a volume that is bound outlive their own deletion."""
