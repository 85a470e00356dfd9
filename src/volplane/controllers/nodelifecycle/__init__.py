"""Node lifecycle: who is heard of, who is not, and what that keeps away from a node."""
