"""The package alone: no framework, numpy for tensors, and torch where it is installed."""

import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
from conftest import command, compile_model

import atomc

GAP = 1024
PAGES = 64


def load(model, tensors):
    names = list(tensors)
    random.Random(1).shuffle(names)
    with model.loading() as loading:
        for name in names:
            loading.feed(name, tensors[name])
    return model


def rows(view):
    """The rows of a view, in numbers of 16 bits or as float32."""
    kind = {"float32": ctypes.c_float, "int32": ctypes.c_int32}.get(view.dtype, ctypes.c_uint16)
    (count, width), (stride, _) = view.shape, view.strides
    numbers = (kind * ((count - 1) * stride + width)).from_address(view.ptr)
    return numpy.lib.stride_tricks.as_strided(
        numpy.frombuffer(numbers, kind),
        (count, width),
        (stride * ctypes.sizeof(kind), ctypes.sizeof(kind)),
    )


class Framework:
    """Schedules by itself: pages with gaps between them, tables of its own, steps with padding."""

    def __init__(self, model):
        self.model, self.spec = model, model.cache[0]
        self.stride = self.spec.block_bytes + GAP
        # What an earlier owner left in the pages is not a number.
        self.memory = [numpy.full((PAGES + 1) * self.stride, 255, numpy.uint8) for _ in model.cache]
        starts = [memory.ctypes.data + -memory.ctypes.data % 64 for memory in self.memory]
        model.bind_cache([(start, self.stride, PAGES, 0) for start in starts])
        self.free = list(range(1, PAGES))
        random.Random(2).shuffle(self.free)
        self.lengths, self.tables = {}, {}

    def step(self, requests, padding=0, decode=False, embedded=False):
        """Gives each sequence of `(name, tokens)` its new tokens, and returns the logits after all
        of them. The model may get other tokens, and embeddings that were looked up before."""
        ids, positions, starts, lengths, tables = [], [], [0], [], []
        width = -(-self.model.max_positions // self.spec.block_tokens)
        for name, tokens in requests:
            first = self.lengths.get(name, 0)
            last = self.lengths[name] = first + len(tokens)
            table = self.tables.setdefault(name, [])
            while len(table) * self.spec.block_tokens < last:
                table.append(self.free.pop())
            ids += tokens
            positions += range(first, last)
            starts.append(len(ids))
            lengths.append(last)
            tables.append(table + [0] * (width - len(table)))
        count = len(ids)
        if embedded:
            rows(self.model.embed_input)[:count, 0] = ids
            embeddings = rows(self.model.embed(count)).copy()
            ids = [0] * count
        ids += [-1] * padding
        positions += [-1] * padding
        starts += [count] * padding
        lengths += [-1] * padding
        tables += [[-1] * width] * padding
        arrays = {
            "ids": numpy.array(ids, numpy.int32),
            "positions": numpy.array(positions, numpy.int64),
            "starts": numpy.array(starts, numpy.int32),
            "lengths": numpy.array(lengths, numpy.int32),
        }
        table = numpy.array(tables, numpy.int32)
        self.model.begin(
            **{name: array.ctypes.data for name, array in arrays.items()},
            tables=[(table.ctypes.data, width)] * len(self.model.cache),
            sequences=len(lengths),
            tokens=len(ids),
            each=int(decode),
            embedded=embedded,
        )
        if embedded:
            call = self.model.run()
            assert call.kind == "embedding"
            rows(call.value)[:count] = embeddings
        assert self.model.run() is None
        self.named = {
            name: rows(self.model.hidden_of(name))[:count].copy()
            for name in self.model.hidden_names
        }
        logits = []
        for begin in range(0, count, self.model.max_rows):
            part = min(count - begin, self.model.max_rows)
            rows(self.model.head_input)[:part] = rows(self.model.hidden)[begin : begin + part]
            logits.append(rows(self.model.head(part)).copy())
        return numpy.concatenate(logits)


def test_facts(artifact, checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    assert artifact.architecture == "Qwen3ForCausalLM"
    assert artifact.targets == ["host"]
    assert artifact.tensor_parallel == 1
    assert artifact.producer.startswith(atomc.__version__) or atomc.__version__ in artifact.producer
    assert len(artifact.key) == 64 and isinstance(artifact.config, dict)
    model = atomc.Model(artifact, threads=1)
    assert (model.target, model.device) == ("host", f"host:{model.variant}")
    assert (model.vocab, model.hidden_size) == (config["vocab_size"], config["hidden_size"])
    assert model.max_positions == config["max_position_embeddings"]
    assert (model.dtype, model.decode, model.max_tokens, model.attention) == (
        "bfloat16",
        [1],
        96,
        "own",
    )
    assert [cache.layer for cache in model.cache] == list(range(config["num_hidden_layers"]))
    assert all(
        (c.heads, c.head_dim, c.window) == (config["num_key_value_heads"], config["head_dim"], 0)
        for c in model.cache
    )
    assert model.hidden.shape == (96, model.hidden_size)
    assert model.head_input.shape == (model.max_rows, model.hidden_size)


def test_another_than_expected_is_refused(artifact):
    made = {"producer": artifact.producer, "config": artifact.config}
    for expected in (artifact.key, json.dumps(made)):
        assert atomc.Artifact(artifact.path, expected=expected).key == artifact.key
    made["config"]["model"]["hidden_size"] = 3
    with pytest.raises(
        atomc.ArtifactError, match="config.model.hidden_size is .*, and 3 was expected"
    ):
        atomc.Artifact(artifact.path, expected=json.dumps(made))
    with pytest.raises(atomc.ArtifactError, match="is a key, or JSON"):
        atomc.Artifact(artifact.path, expected="?")


def test_variables_are_any_bytes():
    """As Python has them: bytes that are no UTF-8 are surrogates."""
    assert atomc._atomc.settings_of(
        {"FOO": "\udcff", "OLDPWD\udce9": "x", "ATOMC_STRICT": "1"}
    ) == {"ATOMC_STRICT": "1"}
    with pytest.raises(ValueError, match="ATOMC_COMPILER: .* is not UTF-8"):
        atomc._atomc.settings_of({"ATOMC_COMPILER": "/caf\udce9"})
    with pytest.raises(
        ValueError, match="ATOMC_STRIKT: there is no such variable; known are .*ATOMC_SYSROOT"
    ):
        atomc._atomc.settings_of({"ATOMC_STRIKT": "1"})


def header_and_zeros(path):
    """The header of an artifact, and zeros in place of its sections."""
    file = pathlib.Path(path).read_bytes()
    end = 16 + 48 * int.from_bytes(file[12:16], "little") + 32
    return file[:end], bytes(len(file) - end)


def test_trusted_as_the_list_says(artifact, tmp_path, monkeypatch):
    assert artifact.trusted(), "the compiler of these tests put it there"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not artifact.trusted(), "this list is empty"
    (tmp_path / "atomc").mkdir()
    (tmp_path / "atomc" / "trusted").write_text(f"{artifact.fingerprint} what it is\n")
    assert artifact.trusted()
    assert atomc._atomc.trusted(artifact.path)
    (tmp_path / "header").write_bytes(b"".join(header_and_zeros(artifact.path)))
    assert atomc._atomc.trusted(tmp_path / "header"), "the list is asked by the header alone"
    with pytest.raises(atomc.ArtifactError, match="checksum of section 0"):
        atomc.Artifact(tmp_path / "header")
    other = compile_model(
        tmp_path / "other.atomc", "--decode", "1", "--prefill", "32", "--no-trust"
    )
    assert not other.trusted() and other.fingerprint != artifact.fingerprint
    (tmp_path / "atomc" / "trusted").write_text("yes\n")
    with pytest.raises(atomc.ArtifactError, match="line 1 does not begin with a fingerprint"):
        artifact.trusted()
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.delenv("HOME")
    with pytest.raises(atomc.ArtifactError, match="neither XDG_CONFIG_HOME nor HOME is set"):
        artifact.trusted()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key")
def test_signatures_are_asked_for(artifact, tmp_path, monkeypatch):
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    copied = tmp_path / "copy.atomc"
    copied.write_bytes(pathlib.Path(artifact.path).read_bytes())
    copy = atomc.Artifact(copied)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ATOMC_REQUIRE_SIGNED_BY", str(public))
    for run in (atomc.Model, atomc.Engine, atomc.Artifact.trusted):
        with pytest.raises(
            atomc.ArtifactError, match="copy.atomc is not signed: there is no .*copy.atomc.sig"
        ):
            run(copy)
    command("sign", "--key", key, copied)
    assert copy.trusted(), "on no list, but signed"
    atomc.Model(copy), atomc.Engine(copy)
    copied.with_name("copy.atomc.sig").write_bytes(bytes(64))
    for run in (atomc.Model, atomc.Engine, atomc.Artifact.trusted):
        with pytest.raises(
            atomc.ArtifactError, match="is no signature of .*copy.atomc by .*public.pem"
        ):
            run(copy)


def test_steps_equal_the_engines(artifact, tensors, checkpoint):
    framework = Framework(load(atomc.Model(artifact, threads=1), tensors))
    engine = atomc.Engine(artifact, threads=1, cache_tokens=2048)
    engine.load(checkpoint)
    choose = random.Random(3)
    owned = {name: engine.add() for name in "abc"}
    for turn in range(40):
        decode = turn % 3 == 2
        names = choose.sample("abc", 3)
        requests = [
            (name, [choose.randrange(512) for _ in range(1 if decode else choose.randint(1, 20))])
            for name in names
        ]
        wanted = engine.step([(owned[name], tokens, "all") for name, tokens in requests])
        wanted = numpy.concatenate([numpy.from_dlpack(view) for view in wanted])
        found = framework.step(requests, padding=choose.randrange(4), decode=decode)
        assert found.shape == wanted.shape and (found == wanted).all(), f"turn {turn}"
        # One token of one sequence has a plan of its own, which both take.
        token = [choose.randrange(512)]
        (wanted,) = engine.step([(owned["a"], token, "last")])
        assert (framework.step([("a", token)], decode=True) == numpy.from_dlpack(wanted)).all()
        if framework.lengths["a"] > 300:
            for name in "abc":
                engine.drop(owned[name])
                owned[name] = engine.add()
                framework.free += framework.tables.pop(name)
                del framework.lengths[name]


def test_rows_that_enter_layers_have_names(tmp_path, tensors):
    artifact = compile_model(
        tmp_path / "m.atomc", "--decode", "1", "--prefill", "96", "--hidden", "0,2"
    )
    framework = Framework(load(atomc.Model(artifact, threads=1), tensors))
    model, tokens = framework.model, [5, 6, 7, 8]
    assert model.hidden_names == ["hidden.0", "hidden.2"]
    framework.step([("a", tokens)], padding=2)
    rows(model.embed_input)[: len(tokens), 0] = tokens
    assert (framework.named["hidden.0"] == rows(model.embed(len(tokens)))).all()
    assert framework.named["hidden.2"].shape == framework.named["hidden.0"].shape
    assert (framework.named["hidden.2"] != framework.named["hidden.0"]).any()
    with pytest.raises(atomc.StepError, match="the rows of no step are there"):
        model.hidden_of("hidden.0")
    with pytest.raises(
        atomc.StepError,
        match="no rows are called `hidden.1`; the artifact has `hidden.0`, `hidden.2`",
    ):
        model.hidden_of("hidden.1")


def test_answers(artifact, checkpoint):
    engine = atomc.Engine(artifact, threads=1)
    engine.load(checkpoint)
    assert len(engine.generate([5, 6, 7], 8)) <= 8


def test_numbers_are_bounded(artifact, checkpoint):
    started = time.monotonic()
    with pytest.raises(atomc.DeviceError, match="^cache_tokens: 1099511627776 tokens take"):
        atomc.Engine(artifact, threads=1, cache_tokens=2**40)
    for opens in [atomc.Engine, atomc.Model]:
        with pytest.raises(
            atomc.DeviceError, match="^threads: cannot start 1025: there may be 1 to 1024"
        ):
            opens(artifact, threads=1025)
    assert time.monotonic() - started < 2
    engine = atomc.Engine(artifact, threads=1)
    engine.load(checkpoint)
    for name, value in [
        ("temperature", float("nan")),
        ("temperature", -1),
        ("temperature", float("inf")),
        ("top_p", 0),
    ]:
        with pytest.raises(atomc.StepError, match=f"^{name}: "):
            engine.generate([5], 1, **{name: value})


def test_forked_children_get_an_error(artifact, checkpoint):
    engine = atomc.Engine(artifact, threads=2)
    engine.load(checkpoint)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            engine.generate([5], 1)
        except atomc.DeviceError as error:
            said = str(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    for _ in range(100):
        if os.waitpid(child, os.WNOHANG)[0] == child:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    os.close(write)
    with open(read) as pipe:
        assert "use the start method `spawn`" in pipe.read()
    assert len(engine.generate([5], 1)) <= 1


def test_reload_in_place(artifact, tensors):
    model = load(atomc.Model(artifact, threads=1), tensors)
    first = Framework(model).step([("a", [7, 8, 9])])
    hidden = model.hidden.ptr
    scaled = {
        name: tensor * 2 if name == "model.norm.weight" else tensor
        for name, tensor in tensors.items()
    }
    for values, factor in [(scaled, 2), (tensors, 1), (scaled, 2)]:
        assert (Framework(load(model, values)).step([("a", [7, 8, 9])]) == first * factor).all()
    assert model.hidden.ptr == hidden


def test_two_models(artifact, tensors):
    scaled = {
        name: tensor * 2 if name == "model.norm.weight" else tensor
        for name, tensor in tensors.items()
    }
    one = Framework(load(atomc.Model(artifact, threads=1), tensors))
    two = Framework(load(atomc.Model(artifact, threads=2), scaled))
    for tokens in [[1, 2, 3], [4], [5, 6]]:
        assert (one.step([("a", tokens)]) * 2 == two.step([("a", tokens)])).all()


def test_memory_of_the_caller(artifact, tensors):
    given = []

    def allocate(size):
        given.append(numpy.zeros(size + 64, numpy.uint8))
        return given[-1].ctypes.data + -given[-1].ctypes.data % 64

    model = load(atomc.Model(artifact, threads=1, allocate=allocate), tensors)
    own = load(atomc.Model(artifact, threads=1), tensors)
    assert (Framework(model).step([("a", [3, 4])]) == Framework(own).step([("a", [3, 4])])).all()
    assert any(
        array.ctypes.data <= model.hidden.ptr < array.ctypes.data + array.size for array in given
    )

    class Full(Exception):
        pass

    def refuse(size):
        raise Full

    with pytest.raises(Full):
        atomc.Model(artifact, allocate=refuse)
    with pytest.raises(atomc.DeviceError, match="^allocate: a null pointer"):
        atomc.Model(artifact, allocate=lambda size: 0)


def test_errors_name_the_field(artifact, tensors, tmp_path):
    for kind in [atomc.ArtifactError, atomc.DeviceError, atomc.StepError, atomc.WeightsError]:
        assert issubclass(kind, atomc.Error)
    (tmp_path / "no.atomc").write_bytes(b"no artifact")
    with pytest.raises(atomc.ArtifactError, match="not an atomc artifact"):
        atomc.Artifact(tmp_path / "no.atomc")
    with pytest.raises(atomc.DeviceError, match="unknown device `tpu`"):
        atomc.Model(artifact, "tpu")
    with pytest.raises(atomc.ArtifactError, match="^rank: 1"):
        atomc.Model(artifact, rank=1)
    with pytest.raises(atomc.ArtifactError, match="^attention: .*caller"):
        atomc.Model(artifact, attention="caller")
    with pytest.raises(ValueError, match="^attention: `flash`"):
        atomc.Model(artifact, attention="flash")
    model = atomc.Model(artifact, threads=1)
    with pytest.raises(atomc.StepError, match="weights are not loaded"):
        model.head(1)
    with pytest.raises(atomc.WeightsError, match="model.norm.weight"):
        with model.loading() as loading:
            for name in set(tensors) - {"model.norm.weight"}:
                loading.feed(name, tensors[name])
    with model.loading() as loading:
        with pytest.raises(atomc.WeightsError, match="does not use: model.layers.9.norm"):
            loading.feed("model.layers.9.norm", tensors["model.norm.weight"])
        with pytest.raises(atomc.WeightsError, match="`model.norm.weight` has shape"):
            loading.feed("model.norm.weight", numpy.zeros(3, numpy.float32))
        with pytest.raises(atomc.WeightsError, match="`model.norm.weight` is of type i32"):
            loading.feed("model.norm.weight", numpy.zeros(192, numpy.int32))
        loading.feed("model.layers.0.self_attn.rotary_emb.inv_freq", numpy.zeros(16, numpy.float32))
        for name, tensor in tensors.items():
            loading.feed(name, tensor)
    with pytest.raises(KeyError):
        with model.loading() as loading:
            raise KeyError
    with pytest.raises(atomc.StepError, match="weights are not loaded"):
        model.head(1)
    load(model, tensors)
    with pytest.raises(atomc.StepError, match="^run: no step"):
        model.run()
    with pytest.raises(atomc.StepError, match="pages of the cache are not bound"):
        model.begin(
            ids=64, positions=64, starts=64, lengths=64, tables=[(64, 1)] * 4, sequences=0, tokens=0
        )
    with pytest.raises(atomc.StepError, match="^starts: a null pointer"):
        model.begin(
            ids=64, positions=64, starts=0, lengths=64, tables=[(64, 1)] * 4, sequences=0, tokens=0
        )
    with pytest.raises(atomc.StepError, match=r"^states: pages of \[0\], but the model keeps 4"):
        model.bind_cache([(4096, 4096, 1, 0)])
    with pytest.raises(atomc.StepError, match="^cache 1: a null pointer"):
        model.bind_cache([(4096, 4096, 1, 0), (0, 4096, 1, 0)])
    with pytest.raises(atomc.StepError, match="^block_stride: "):
        model.bind_cache([(4096, 4096 + 64, 1, 0)] * 4)
    framework = Framework(model)
    with pytest.raises(atomc.StepError, match="^sequence 1: ids: 512"):
        framework.step([("a", [1]), ("b", [512])])
    with pytest.raises(atomc.StepError, match="^tokens: 97"):
        framework.step([("a", [1] * 97)])
    with pytest.raises(atomc.StepError, match="^rows: "):
        model.head(model.max_rows + 1)


def test_shapes_are_checked_before_numbers_are_copied(artifact):
    model = atomc.Model(artifact, threads=1)
    one = numpy.zeros(1, numpy.float32)
    repeated = numpy.lib.stride_tricks.as_strided
    started = time.monotonic()
    with pytest.raises(KeyError):
        with model.loading() as loading:
            for shape in [(2**40,), (2**28, 2), (2**30, 2**30)]:
                with pytest.raises(atomc.WeightsError, match="`model.norm.weight` has shape"):
                    loading.feed("model.norm.weight", repeated(one, shape, (0,) * len(shape)))
                with pytest.raises(atomc.WeightsError, match="does not use: model.layers.9.norm"):
                    loading.feed("model.layers.9.norm", repeated(one, shape, (0,) * len(shape)))
            raise KeyError
    assert time.monotonic() - started < 1


def test_steps_end_with_their_weights(artifact, tensors):
    model = load(atomc.Model(artifact, threads=1), tensors)

    class Between:
        """The model, with weights that change between the beginning of a step and its run."""

        def __init__(self, change):
            self.change = change

        def __getattr__(self, name):
            return getattr(model, name)

        def run(self):
            self.change()
            return model.run()

    def begin_loading():
        model.loading().__enter__().feed("model.norm.weight", tensors["model.norm.weight"])

    for change in [model.unload, begin_loading]:
        framework = Framework(load(model, tensors))
        framework.model = Between(change)
        with pytest.raises(atomc.StepError, match="^run: no step is under way"):
            framework.step([("a", [1])])


def test_unloaded_weights_come_back_one_by_one(artifact, tensors):
    model = load(atomc.Model(artifact, threads=1), tensors)
    wanted = Framework(model).step([("a", [1, 2, 3])])
    model.unload()
    for name, tensor in tensors.items():
        with pytest.raises(atomc.StepError, match="^the weights are not loaded"):
            model.embed(1)
        with model.loading(update=True) as loading:
            loading.feed(name, tensor)
    assert numpy.array_equal(Framework(model).step([("a", [1, 2, 3])]), wanted)


def test_tensors_elsewhere_are_refused(artifact):
    class OnGpu:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            raise AssertionError("it is not wanted")

    model = atomc.Model(artifact, threads=1)
    with pytest.raises(
        atomc.WeightsError, match="^tensor `model.norm.weight` is not in the memory of the host$"
    ):
        with model.loading(update=True) as loading:
            loading.feed("model.norm.weight", OnGpu(), stream=7)


def test_faults_of_an_artifact_name_its_file(artifact, tmp_path):
    damaged = tmp_path / "damaged.atomc"
    damaged.write_bytes(pathlib.Path(artifact.path).read_bytes()[:-100])
    with pytest.raises(atomc.ArtifactError, match=f"^{damaged}: artifact is cut short"):
        atomc.Artifact(damaged)


def test_strided_and_narrow_tensors(artifact, tensors):
    wanted = Framework(load(atomc.Model(artifact, threads=1), tensors)).step([("a", [1, 2, 3])])
    # Every second column of a wider matrix, and a transposed one; numbers of 64 bits.
    odd = {}
    for index, (name, tensor) in enumerate(tensors.items()):
        if tensor.ndim == 2 and index % 2:
            wide = numpy.zeros((tensor.shape[0], tensor.shape[1] * 2), numpy.float32)
            wide[:, ::2] = tensor
            odd[name] = wide[:, ::2]
        elif tensor.ndim == 2:
            odd[name] = numpy.ascontiguousarray(tensor.T).T
        else:
            odd[name] = tensor.astype(numpy.float64)
    assert (
        Framework(load(atomc.Model(artifact, threads=1), odd)).step([("a", [1, 2, 3])]) == wanted
    ).all()


def test_views_keep_their_owner(artifact, tensors):
    model = load(atomc.Model(artifact, threads=1), tensors)
    logits = numpy.from_dlpack(model.head(3))
    before = logits.copy()
    del model
    assert logits.shape == (3, 512) and (logits == before).all()


def test_python_runs_beside_steps(artifact, tensors):
    framework = Framework(load(atomc.Model(artifact, threads=1), tensors))
    turns, over = 0, False

    def count():
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    # No thread is made to give way: the other thread runs when this one has released the lock, or
    # not at all.
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=count, daemon=True)
        framework.step([("a", [1] * 96)])
        thread.start()
        before = turns
        for name in "bcdef":
            framework.step([(name, [1] * 96)])
        assert turns > before
    finally:
        over = True
        sys.setswitchinterval(interval)
    thread.join()


def test_nothing_else_is_loaded():
    mapped = {
        line.split()[-1]
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
        if "/" in line
    }
    assert not [path for path in mapped if "LLVM" in path]
    assert len([path for path in mapped if "libpython" in pathlib.Path(path).name]) <= 1


def test_torch(artifact, tensors):
    torch = pytest.importorskip("torch")
    halves = {name: torch.from_numpy(tensor).to(torch.bfloat16) for name, tensor in tensors.items()}
    model = load(atomc.Model(artifact, threads=1), halves)
    framework = Framework(model)
    wanted = Framework(load(atomc.Model(artifact, threads=1), tensors)).step([("a", [4, 5, 6])])
    assert (framework.step([("a", [4, 5, 6])]) == wanted).all()
    hidden, head_input = torch.from_dlpack(model.hidden), torch.from_dlpack(model.head_input)
    assert (hidden.dtype, hidden.data_ptr(), hidden.stride()) == (
        torch.bfloat16,
        model.hidden.ptr,
        model.hidden.strides,
    )
    with torch.inference_mode():
        head_input[:2] = hidden[1:3]
        logits = torch.from_dlpack(model.head(2))
    assert (logits.numpy() == wanted[1:]).all()
