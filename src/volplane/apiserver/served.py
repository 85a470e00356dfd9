"""The kinds this server serves from the start.

A kind is served when whoever creates one gets what it promises: data kinds, and those whose controllers
exist. One that is only typed yet is left out here until its controller is there.
"""

from __future__ import annotations

from volplane.api import kinds

SERVED = kinds.ALL
