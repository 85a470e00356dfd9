"""API client: typed verbs (`client`), transports (`transport`, `https`), shared caches (`cache`).

All other packages use a `Client` to access the API server. Nothing here depends on a particular kind.
"""
