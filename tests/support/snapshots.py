"""The CustomResourceDefinitions of snapshots."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from volplane.api import codec
from volplane.api.apiextensions import CustomResourceDefinition


@cache
def definitions() -> list[CustomResourceDefinition]:
    text = resources.files("volplane.manifests").joinpath("snapshots.yaml").read_text()
    return [
        codec.convert(CustomResourceDefinition, d) for d in yaml.load_all(text, Loader=yaml.CSafeLoader) if d
    ]
