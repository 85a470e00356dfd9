"""Quotas: their status shows how much of them the claims of the namespace use."""
