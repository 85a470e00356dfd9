"""Claims that ask for more: somebody else makes their volumes grow, and is told so where needed."""
