"""The binder: every claim gets its volume, every volume its claim, and what is given back is reclaimed."""
