"""The journey of a volume: which component took which step for a claim, in which order, with which outcome.

`model.py` is the data. `join.py` builds journeys from the spans that the roles have recorded, `derive.py`
from what a cluster without Volplane shows. `order.py` compares a journey with the order of the contract,
`transitions.py` lists the changes of state. All of these are pure functions. `collect.py` reads spans and
objects; `render_*.py` turn a journey into text, JSON, Mermaid and HTML.
"""
