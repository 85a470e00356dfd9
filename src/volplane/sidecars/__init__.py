"""The CSI sidecars. `base` has what they all do at their start."""
