"""Modifies the volumes of claims that name another VolumeAttributesClass."""
