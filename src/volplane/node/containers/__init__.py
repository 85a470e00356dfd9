"""Running containers: built-in images as tasks, commands as processes, later a real runtime over CRI.

What a pod is and when its containers start is left to `node.pods`; here one container is started, watched,
entered, stopped and forgotten. All three ways have the same face, `base.Runtime`.
"""
