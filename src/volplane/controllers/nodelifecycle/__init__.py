"""Node lifecycle: heartbeats, the Ready condition, and the taints that follow from them."""
