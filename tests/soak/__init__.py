"""Soak tests of our own drivers: `make soak DRIVERS="ebs efs"`."""
