"""livenessprobe: turns the driver's Probe into an HTTP answer. Run it with `run(settings)`."""

from volplane.sidecars.liveness.service import run
from volplane.sidecars.liveness.settings import LivenessOptions

__all__ = ["LivenessOptions", "run"]
