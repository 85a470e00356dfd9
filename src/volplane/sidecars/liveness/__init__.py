"""livenessprobe: answers HTTP health checks with the driver's Probe. Run it with `run(settings)`."""

from volplane.sidecars.liveness.service import COMPONENT, run
from volplane.sidecars.liveness.settings import LivenessOptions

__all__ = ["COMPONENT", "LivenessOptions", "run"]
