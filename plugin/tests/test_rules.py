"""The rules see every way in which a shim could change what it imports, and let pass what shims do."""

import pytest
import rules

IMPORTS = """
import importlib, sys, torch
from importlib import import_module
from . import compat
"""
CHANGES = [
    "torch.Tensor.pin_memory = None",
    "compat.HookRegistry._hooks['a'] = 1",
    "del torch.Tensor.pin_memory",
    "torch.x += 1",
    "vars(import_module('sglang.srt')).update(a=1)",
    "import_module('sglang.srt').a = 1",
    "importlib.import_module('sglang.srt').table.update(a=1)",
    "import_module('sglang.srt').table['a'] = 1",
    "module = import_module('sglang.srt'); module.a = 1",
    "a, b = torch, compat; b.c = 1",
    "pools = compat.Pool; pools.make = None",
    "if (pools := compat.Pool): pools.make = None",
    "for module in (torch, compat): module.a = 1",
    "for torch.a in (1, 2): pass",
    "chosen = compat if torch else torch; chosen.a = 1",
    "setattr(torch, 'a', 1)",
    "put = setattr; put(torch, 'a', 1)",
    "list(map(setattr, [torch], ['a'], [1]))",
    "from builtins import setattr as put",
    "import builtins",
    "getattr(object, '__setattr__')(torch, 'a', 1)",
    "type.__setattr__(torch.Tensor, 'a', 1)",
    "object.__setattr__(torch, 'a', 1)",
    "torch.__dict__['a'] = 1",
    "inside = torch.__dict__",
    "getattr(torch, '__dict__').update(a=1)",
    "vars(torch)['a'] = 1",
    "look = vars",
    "sys.modules['torch'] = None",
    "from sys import modules",
    "compat.KNOWN.append(1)",
    "known = compat.KNOWN; known.append(1)",
    "torch.Tensor.f.__code__ = None",
    "exec('torch.a = 1')",
    "globals()['torch'] = None",
    "from operator import setitem",
    "from unittest.mock import patch",
    "try: pass\nexcept Exception: pass",
]
HARMLESS = [
    "made = torch.zeros(2); made.shared = 1",
    "known = {}; known.update(a=1)",
    "def f(config): config.mode = compat.Mode.NONE",
    "class A(torch.nn.Module):\n def f(self): self.a = torch; self.b = []; self.b.append(1)",
    "compat.HookRegistry.register('a', f)",
    "torch.set_num_threads(1)",
    "rows = [1]; rows.append(compat.WINDOW)",
]


@pytest.fixture
def judged(tmp_path):
    def judge(text: str) -> None:
        file = tmp_path / "shim.py"
        file.write_text(IMPORTS + text)
        rules.patches_nothing(file)

    return judge


@pytest.mark.parametrize("text", CHANGES)
def test_changes_are_seen(judged, text):
    with pytest.raises(AssertionError):
        judged(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_changes_nothing_passes(judged, text):
    judged(text)
