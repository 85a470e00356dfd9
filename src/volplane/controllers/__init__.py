"""The controllers: each reconciles one kind of object with its desired state."""
