"""Stands in for a package that SGLang imports and these tests do not use: nothing of it works."""


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise RuntimeError(f"{__name__}.{name}: the package is not installed")

    return absent
