"""Claims that ask for more: their volumes grow."""
