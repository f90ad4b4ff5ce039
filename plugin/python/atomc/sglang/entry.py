"""What SGLang's registry finds: a class for each architecture that artifacts can hold."""

from importlib import import_module
from types import new_class

import torch

from . import compat, config


class Entry(type):
    """Answers what SGLang asks a class before there is a model as SGLang's own class does, if one of that will run."""

    def __getattr__(cls, name: str):
        if name.startswith("__") or config.artifact():
            raise AttributeError(name)
        return getattr(compat.own_class(cls.__name__), name)


class Choice(torch.nn.Module, metaclass=Entry):
    """Makes the model of an artifact, or one of SGLang's own class where there is none."""

    def __new__(cls, config, **options):
        make = import_module(".model", __package__).make  # which imports what is used of SGLang, and fails if it is not there
        return make(cls.__name__, config, options)


EntryClass = [new_class(name, (Choice,)) for name in (*compat.ARCHITECTURES, compat.TRANSFORMERS)]
