"""Garbage collector: delete objects whose owners are gone; foreground deletion waits for dependents."""
