"""Quotas: their status shows how much of them the objects of the namespace use."""
