"""Pure facts that several rooms share: who fits whom, what is in the way, and the `Wait` that says so.

Nothing here acts, asks or knows the time; plans call it, and `explain` reads the same words.
"""
