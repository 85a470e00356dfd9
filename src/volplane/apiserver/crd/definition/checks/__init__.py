"""What a definition must be like: its spec, its schemas, its rules."""
