"""The drivers we bring. They do not know each other."""
