"""Garbage: what belongs to somebody goes when its owners are gone; owners wait where they were asked to."""
