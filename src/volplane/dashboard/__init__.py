"""The live page: a cluster's volumes in the browser, rendered here, updated as they change, read-only.

`gate.py` decides who may look, `server.py` answers requests, `observer.py` reads the cluster while a page
is open, `live_view.py` renders a view again when something in it has changed, and `views/` has the views.
Composition roots import `gate` and `entrance` only; everything else is imported when a page is first opened.
"""
