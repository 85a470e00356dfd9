"""The verbs, written once for all kinds.

Each is a function of the backend, the entry of the kind, the call, and what the request carries. They know
nothing of HTTP: `app` and `local` call the same functions and render what comes back in their own way.
"""
