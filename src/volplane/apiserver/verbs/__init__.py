"""The verbs, written once for all kinds.

Each is a function of the backend, the served resource, the call and the request's content. They do not depend
on HTTP: `handlers` and `in_process_transport` call the same functions.
"""
