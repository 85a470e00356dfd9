"""livenessprobe: answers HTTP health checks with the driver's Probe. Run it with `run(settings)`."""

from volplane.sidecars.liveness.service import run
from volplane.sidecars.liveness.settings import LivenessOptions

__all__ = ["LivenessOptions", "run"]
