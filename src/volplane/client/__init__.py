"""The way to an API server: typed verbs (`client`), who carries them (`transport`, `https`), views of it (`cache`).

Every other room talks to the API server through a `Client`; nothing here knows a kind in particular.
"""
