"""The way to an API server: typed verbs (`client`), their carriers (`transport`, `https`), views (`cache`).

Every other room talks to the API server through a `Client`; nothing here knows a kind in particular.
"""
