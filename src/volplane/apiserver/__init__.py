"""The API server: Kubernetes REST over a Store.

Requests come in through `app` (HTTP) or `local` (in process), become one `Call`, and end in one of
`verbs`; what a kind adds to the generic verbs stands in its `Strategy`. The store's bytes go to readers
and watchers as they are: only writes decode a whole object.
"""
