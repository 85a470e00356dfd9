"""Who asks, and may they: credentials in, a User out; a User and what is asked in, yes or no out."""
