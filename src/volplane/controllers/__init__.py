"""The controllers: each brings one kind of object in line with what was asked for."""
