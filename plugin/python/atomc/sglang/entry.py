"""What SGLang's registry finds: a class for each architecture that artifacts can hold, and for the drafts of these."""

from types import new_class

import torch

from . import compat, config, prepare_model


class Entry(type):
    """Answers what SGLang asks a class before there is a model as SGLang's own class does, if one of that will run."""

    def __getattr__(cls, name: str):
        if name.startswith("__") or config.artifact():
            raise AttributeError(name)
        return getattr(compat.own_class(cls.__name__), name)


class Choice(torch.nn.Module, metaclass=Entry):
    """Makes the model of an artifact, or one of SGLang's own class where there is none."""

    def __new__(cls, config, **options):
        return prepare_model(config, architecture=cls.__name__, **options)


EntryClass = [
    new_class(name, (Choice,))
    for name in (*compat.ARCHITECTURES, *compat.DRAFTS, compat.TRANSFORMERS)
]
