"""The kinds this server serves from the start.

A kind is served when whoever creates one gets what it promises: data kinds, and those whose controllers
exist. The others are typed already and join this list together with their controllers.
"""

from __future__ import annotations

from volplane.api import kinds

_NOT_YET = frozenset({"certificatesigningrequests"})

SERVED = tuple(k for k in kinds.ALL if k.plural not in _NOT_YET)
