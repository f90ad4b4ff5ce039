"""Writes layer_norm.txt: what torch makes of three rows in float64, for the reference interpreter to be held to.

pip install torch==2.14.0
python ir/tests/layer_norm.py
"""

from pathlib import Path

import torch

torch.manual_seed(0)
x = torch.randn(3, 20, dtype=torch.float64)
# A row far from zero, and one that is nearly constant, where eps counts.
x[1] += 100
x[2] = 3 + 1e-3 * x[2]
weight, bias = torch.randn(2, 20, dtype=torch.float64)
y = torch.nn.functional.layer_norm(x, (20,), weight, bias, eps=1e-5)
tensors = {"x": x, "weight": weight, "bias": bias, "y": y}
text = "".join(
    " ".join([name, *map(repr, t.flatten().tolist())]) + "\n" for name, t in tensors.items()
)
(Path(__file__).parent / "layer_norm.txt").write_text(text)
