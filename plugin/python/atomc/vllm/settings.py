"""The environment, which is read here alone."""

import os

from atomc import _atomc


def setting(name: str) -> str:
    """The value of a variable of ours, empty if it is not set. Misspelt variables of ours are a ValueError."""
    return _atomc.settings_of(dict(os.environ)).get(name, "")
