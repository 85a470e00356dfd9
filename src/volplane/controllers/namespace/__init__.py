"""A namespace that is deleted: its content is deleted first, then the namespace itself."""
