"""The API's objects: frozen Structs per group, the table of kinds, and the small languages inside objects."""
