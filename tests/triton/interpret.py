"""Runs the cases in Triton's own interpreter, on numpy arrays: evidence that kernels and expected results agree before any chip is involved.

The interpreter has no products of bf16 and truncates where chips round, so all small floats are given to it as f32, and the
conversions between them are left out.

    python interpret.py [--all] [CASE ...]
"""
import os, sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import triton.language

import cases, make


class Tensor:
    """What the interpreter asks of a tensor, over a numpy array that stays where it is."""

    def __init__(self, array):
        self.array, self.dtype = array, make.TYPES[array.dtype.type][0]

    def data_ptr(self): return self.array.ctypes.data
    def cpu(self): return self
    def untyped_storage(self): return self
    def new_empty(self, *_, **__): return Tensor(self.array)
    def set_(self, *_): pass
    def storage_offset(self): return 0
    def size(self): return self.array.shape
    def stride(self): return self.array.strides
    def copy_(self, other): pass


def worst(case):
    """The largest error of all outputs as a part of what is allowed."""
    wide = lambda v: v.astype(numpy.float32) if v.dtype.name.startswith(("bfloat", "float8", "float16")) else v.copy()
    arrays = {k: wide(v) for k, v in case.args.items() if isinstance(v, numpy.ndarray)}
    args = {k: Tensor(arrays[k]) if k in arrays else v for k, v in case.args.items()}
    constants = {k: getattr(triton.language, {"fp32": "float32"}.get(v, v)) if k == "ZERO" else v for k, v in case.constants.items()}
    case.kernel[case.grid](**args, **constants)
    found = 0.0
    numpy.seterr(invalid="ignore")
    for name, want in case.outputs.items():
        got, want = cases.f64(arrays[name]), cases.f64(want)
        atol, rtol = case.tolerance[name]
        equal = (got == want) | (numpy.isnan(got) & numpy.isnan(want))
        away, allowed = numpy.abs(got - want)[~equal], (atol + rtol * numpy.abs(want))[~equal]
        found = max([found, *numpy.where(away <= allowed, away / numpy.maximum(allowed, 1e-30), numpy.inf)])
    return found


def main():
    asked, bad, seen = [a for a in sys.argv[1:] if a != "--all"], 0, set()
    for chip in ("gfx942", "gfx950"):
        for case in (cases.everything if "--all" in sys.argv else cases.stored)(chip):
            fp8 = chip if "fp8" in case.name or "float8" in case.name else ""
            if (case.name, fp8) in seen or case.name.startswith("convert") or asked and not any(case.name.startswith(a) for a in asked): continue
            seen.add((case.name, fp8))
            try: error = worst(case)
            except Exception as e: error, e = float("inf"), print(f"{case.name}: {type(e).__name__} {e}")
            bad += not error <= 1
            print(f"{error:6.3f}  {case.name} {fp8}", "" if error <= 1 else "  WRONG", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
