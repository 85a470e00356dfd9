"""The CustomResourceDefinition kind itself: its validation and its status.

The status is computed when a definition is written, from the other definitions at that moment, so that the
response to a POST already shows whether the kind is served. The registrar updates it when names become free.
"""
