"""Pure rules that several rooms share: what matches what, what is refused and why, and the `Wait` of a plan.

Nothing here acts, reads objects or knows the time. Plans call it, and so does `explain`.
"""
