"""Quotas: their status says how much of them the namespace's claims use."""
