"""What a node may do: that depends on what runs on it."""
