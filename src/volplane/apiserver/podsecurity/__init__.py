"""Pod Security admission: the labels of a namespace restrict its pods.

`policy` reads the labels `pod-security.kubernetes.io/*`, `standards` contains the checks of the levels,
`admission` applies them to requests.
"""

from volplane.apiserver.podsecurity.admission import PodSecurity

__all__ = ["PodSecurity"]
