"""Pod Security admission: labels of a namespace limit what its pods may ask for.

`policy` reads the labels `pod-security.kubernetes.io/*`, `standards` has the checks of the three levels,
`admission` applies them to requests.
"""

from volplane.apiserver.podsecurity.admission import PodSecurity

__all__ = ["PodSecurity"]
