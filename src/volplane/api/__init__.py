"""The API's objects: frozen Structs per group, the table of kinds, selectors, quantities and names."""
