"""What the tests share: a trained example model as an artifact, made by the compiler of this checkout."""

import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest

import atomc

ROOT = pathlib.Path(__file__).parents[2]


def command(*args):
    """Runs `$ATOMC`, or the workspace's."""
    atomc = os.environ.get("ATOMC")
    start = [atomc] if atomc else ["cargo", "run", "--release", "--quiet", "-p", "atomc", "--"]
    subprocess.run([*start, *args], check=True, cwd=ROOT)


def compile_model(out, *options):
    """Compiles the example model."""
    command("compile", ROOT / "examples/models/qwen3", "--target", "host", "-o", out, *options)
    return atomc.Artifact(out)


@pytest.fixture(scope="session", autouse=True)
def trusted(tmp_path_factory):
    """The list of trusted artifacts of these tests. The user's own list stays as it is."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def checkpoint():
    return ROOT / "examples/models/qwen3"


@pytest.fixture(scope="session")
def artifact(tmp_path_factory):
    """Steps of two rows or more have one plan, so that every caller gets the same bits."""
    return compile_model(
        tmp_path_factory.mktemp("artifact") / "qwen3.atomc", "--decode", "1", "--prefill", "96"
    )


@pytest.fixture(scope="session")
def tensors(checkpoint):
    return dict(read_safetensors(checkpoint / "model.safetensors"))


def read_safetensors(path):
    """Names and tensors, widened to float32, which loses nothing."""
    data = path.read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + header]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            halves = numpy.frombuffer(data[begin:end], numpy.uint16).astype(numpy.uint32)
            values = (halves << 16).view(numpy.float32)
        else:
            values = numpy.frombuffer(
                data[begin:end], {"F32": numpy.float32, "F16": numpy.float16}[entry["dtype"]]
            )
        # A copy: numpy gives out what it may not write only in later versions.
        yield name, values.reshape(entry["shape"]).astype(numpy.float32, copy=True)
