"""Attach/detach: a volume is attached where pods need it, and nowhere else."""
