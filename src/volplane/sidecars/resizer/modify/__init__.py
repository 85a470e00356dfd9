"""Claims that name another VolumeAttributesClass: their volumes are changed."""
