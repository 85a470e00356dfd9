"""ResourceQuota: what each object uses, what a quota limits, and whether another object fits.

The API server decides with it whether a write is allowed, and the controller computes the status of quotas.
"""
