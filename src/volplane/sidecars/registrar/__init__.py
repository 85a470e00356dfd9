"""node-driver-registrar: registers a driver with the kubelet. Run it with `run(settings)`."""

from volplane.sidecars.registrar.service import COMPONENT, RegistrationFailed, run
from volplane.sidecars.registrar.settings import RegistrarOptions

__all__ = ["COMPONENT", "RegistrarOptions", "RegistrationFailed", "run"]
