"""The built-in drivers. They do not import each other."""
