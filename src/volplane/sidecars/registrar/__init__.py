"""node-driver-registrar: registers a driver with the kubelet. Run it with `run(settings)`."""

from volplane.sidecars.registrar.service import RegistrationFailed, run
from volplane.sidecars.registrar.settings import RegistrarOptions

__all__ = ["RegistrarOptions", "RegistrationFailed", "run"]
