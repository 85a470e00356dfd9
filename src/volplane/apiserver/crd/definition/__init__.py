"""The CustomResourceDefinition kind itself: what may be defined, and what its status says.

Status is worked out when a definition is written, from the other definitions there are at that moment, so
that the answer to a POST already says whether the kind is served; the keeper repeats it when names become
free.
"""
