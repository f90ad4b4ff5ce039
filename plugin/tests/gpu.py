"""The package on a GPU, with torch: steps on torch's stream, in torch's memory, captured by torch, against the engine's.

    python plugin/tests/gpu.py cuda:0 CHECKPOINT ARTIFACT [SHARED]

ARTIFACT was compiled for the device with --attention own,caller; SHARED with --tp 2, whose ranks share the one device.
"""

import json
import pathlib
import random
import struct
import sys
import time

import torch

import atomc

PAGES = 96


def read(path):
    """The tensors of a safetensors file, where they are."""
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    (header,) = struct.unpack("<Q", bytes(data[:8].tolist()))
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    for name, entry in json.loads(bytes(data[8 : 8 + header].tolist())).items():
        if name != "__metadata__":
            begin, end = (8 + header + offset for offset in entry["data_offsets"])
            yield name, data[begin:end].clone().view(kinds[entry["dtype"]]).view(entry["shape"])


class Framework:
    """Schedules by itself, keeps the pages, adds up what ranks have, and attends where that is left to it."""

    def __init__(self, artifact, device, tensors, attention="own"):
        self.device, self.memory = device, []
        stream = torch.cuda.current_stream(device).cuda_stream
        options = dict(attention=attention, stream=stream, allocate=self.allocate)
        self.ranks = [
            atomc.Model(artifact, device, rank=rank, **options)
            for rank in range(artifact.tensor_parallel)
        ]
        for model in self.ranks:
            self.load(model, tensors)
            stride = model.cache[0].block_bytes + 4096
            starts = [self.allocate(PAGES * stride) for _ in model.cache]
            # What an earlier owner left in the pages is not a number.
            for pages in self.memory[-len(starts) :]:
                pages.fill_(255)
            if attention == "own":
                model.bind_cache([(start, stride, PAGES, 0) for start in starts])
        self.width = -(-model.max_positions // model.cache[0].block_tokens)
        most = model.max_tokens
        kinds = {
            "ids": torch.int32,
            "positions": torch.int64,
            "starts": torch.int32,
            "lengths": torch.int32,
        }
        self.inputs = {
            name: torch.zeros(most + 1, dtype=kind, device=device) for name, kind in kinds.items()
        }
        self.inputs["tables"] = torch.zeros(most, self.width, dtype=torch.int32, device=device)
        self.hidden = torch.from_dlpack(self.ranks[0].hidden)
        self.free = list(range(1, PAGES))
        self.lengths, self.tables, self.seen = {}, {}, {}

    def allocate(self, size):
        self.memory.append(torch.zeros(size, dtype=torch.uint8, device=self.device))
        return self.memory[-1].data_ptr()

    def load(self, model, tensors):
        with model.loading() as loading:
            for name, tensor in tensors.items():
                loading.feed(name, tensor)

    def give(self, requests, sequences, tokens):
        """Writes a step's tensors, padded to `sequences` sequences and `tokens` tokens."""
        ids, positions, starts, lengths, tables, self.owners = [], [], [0], [], [], []
        for name, new in requests:
            first = self.lengths.get(name, 0)
            self.lengths[name] = first + len(new)
            table = self.tables.setdefault(name, [])
            while len(table) * self.ranks[0].cache[0].block_tokens < first + len(new):
                table.append(self.free.pop())
            ids += new
            positions += range(first, first + len(new))
            self.owners += [name] * len(new)
            starts.append(len(ids))
            lengths.append(first + len(new))
            tables.append(table + [0] * (self.width - len(table)))
        self.last = [start - 1 for start in starts[1:]]
        rest = tokens - len(ids)
        ids += [0] * rest
        positions += [0] * rest
        starts += [starts[-1]] * (sequences - len(requests))
        lengths += [1] * (sequences - len(requests))
        tables += [[0] * self.width] * (sequences - len(requests))
        values = dict(ids=ids, positions=positions, starts=starts, lengths=lengths, tables=tables)
        for name, value in values.items():
            self.inputs[name][: len(value)] = torch.tensor(value, dtype=self.inputs[name].dtype)

    def body(self, sequences, tokens, decode, embeddings=None):
        self.begin(sequences, tokens, decode, embeddings is not None)
        self.launch(embeddings)

    def begin(self, sequences, tokens, decode, embedded=False):
        stream = torch.cuda.current_stream(self.device).cuda_stream
        pointers = {name: tensor.data_ptr() for name, tensor in self.inputs.items()}
        pointers["tables"] = [(pointers["tables"], self.width)] * len(self.ranks[0].cache)
        sizes = dict(sequences=sequences, tokens=tokens, each=int(decode), stream=stream)
        for model in self.ranks:
            model.begin(**pointers, **sizes, embedded=embedded)

    def launch(self, embeddings=None):
        while True:
            calls = [model.run() for model in self.ranks]
            if calls[0] is None:
                assert calls == [None] * len(calls)
                return
            if calls[0].kind == "embedding":
                for call in calls:
                    torch.from_dlpack(call.value)[: len(embeddings)] = embeddings
            elif calls[0].kind == "all_reduce":
                values = [torch.from_dlpack(call.value) for call in calls]
                total = sum(value.float() for value in values)
                for value in values:
                    value.copy_(total)
            else:
                for model, call in zip(self.ranks, calls):
                    self.attend(model, call)

    def attend(self, model, call):
        dim = model.cache[call.layer].head_dim
        q, k, v, out = (torch.from_dlpack(x) for x in (call.q, call.k, call.v, call.out))
        for token, name in enumerate(self.owners):
            seen = self.seen.setdefault((model, name, call.layer), [])
            seen.append((k[token].clone(), v[token].clone()))
            keys, values = (
                torch.stack(x).float().view(len(seen), -1, dim) for x in zip(*seen[-call.window :])
            )
            query = q[token].float().view(-1, dim)
            share = query.shape[0] // keys.shape[1]
            scores = (
                torch.einsum("hd,nhd->hn", query, keys.repeat_interleave(share, 1)) * call.scale
            )
            value = torch.einsum(
                "hn,nhd->hd", scores.softmax(-1), values.repeat_interleave(share, 1)
            )
            out[token] = value.flatten().to(out.dtype)

    def head(self, rows):
        stream, parts = torch.cuda.current_stream(self.device).cuda_stream, []
        for model in self.ranks:
            torch.from_dlpack(model.head_input)[: len(rows)] = torch.from_dlpack(model.hidden)[rows]
            parts.append(torch.from_dlpack(model.head(len(rows), stream)))
        having = self.ranks[0].vocab // parts[0].shape[1]
        return parts[0] if having == 1 else torch.cat(parts[:having], 1)

    def embed(self, ids):
        model = self.ranks[0]
        torch.from_dlpack(model.embed_input)[: len(ids), 0] = torch.tensor(ids, dtype=torch.int32)
        return torch.from_dlpack(
            model.embed(len(ids), torch.cuda.current_stream(self.device).cuda_stream)
        ).clone()

    def step(self, requests, padding=0, decode=False, embedded=False):
        ids = [token for _, new in requests for token in new]
        tokens = len(ids) + padding
        embeddings = self.embed(ids) if embedded else None
        self.give(requests, len(requests) + padding, tokens)
        if embedded:
            self.inputs["ids"].zero_()
        self.body(len(requests) + padding, tokens, decode, embeddings)
        return self.head(self.last).clone()

    def drop(self, name):
        self.free += self.tables.pop(name)
        del self.lengths[name]
        self.seen = {key: value for key, value in self.seen.items() if key[1] != name}


class Owned:
    """The engine, for its logits."""

    def __init__(self, artifact, device, checkpoint):
        self.engine = atomc.Engine(artifact, device, cache_tokens=8192)
        self.engine.load(checkpoint)
        self.sequences = {}

    def step(self, requests):
        for name, _ in requests:
            self.sequences.setdefault(name, self.engine.add())
        views = self.engine.step([(self.sequences[name], new, "last") for name, new in requests])
        return torch.cat([torch.from_dlpack(view) for view in views])

    def drop(self, name):
        self.engine.drop(self.sequences.pop(name))


def compare(what, found, wanted, share):
    """Root mean square of what logits are off, by that of the logits."""
    off = ((found.cpu() - wanted).square().mean() / wanted.square().mean()).sqrt().item()
    assert off <= share, f"{what}: {off}"
    return off


def mixtures(framework, owned, turns, share):
    choose, worst = random.Random(5), 0.0
    for turn in range(turns):
        decode = turn % 2 == 1
        names = choose.sample("abcd", choose.randint(1, 4))
        requests = [
            (n, [choose.randrange(512) for _ in range(1 if decode else choose.randint(1, 40))])
            for n in names
        ]
        found = framework.step(
            requests, padding=choose.randrange(3), decode=decode, embedded=turn % 3 == 0
        )
        worst = max(worst, compare(f"turn {turn}", found, owned.step(requests), share))
        for name in [n for n in framework.lengths if framework.lengths[n] > 400]:
            framework.drop(name)
            owned.drop(name)
    return worst


def captured(framework, owned):
    """Decode steps of torch's graph, which also has the head, against the engine's. Two sequences are padding at times."""
    size, choose = 4, random.Random(6)
    prompts = [(name, [choose.randrange(512) for _ in range(30)]) for name in "wxyz"]
    ones = [(name, [7]) for name in "wxyz"]
    rows = torch.arange(size, device=framework.device)
    for requests, decode in [(prompts, False), (ones, True)]:
        framework.step(requests, decode=decode)
        owned.step(requests)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        framework.body(size, size, True)
        logits = framework.head(rows)
    worst = 0.0
    for turn in range(40):
        live = size - turn % 3
        requests = [(name, [choose.randrange(512)]) for name in "wxyz"[:live]]
        framework.give(requests, size, size)
        graph.replay()
        worst = max(worst, compare(f"replay {turn}", logits[:live], owned.step(requests), 0.01))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(100):
        framework.body(size, size, True)
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    print(
        f"a step: {host * 1e4:.0f} us to launch from Python, {(time.perf_counter() - begin) * 1e4:.0f} us replayed"
    )
    return worst


def broken(framework, owned, size=24):
    """Steps of a graph that holds all but their beginnings: prompts and single tokens, as many together as were captured."""
    choose = random.Random(7)
    framework.give([(name, [1]) for name in "stuv"], size, size)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # Launches go where their step began.
    with torch.cuda.stream(stream):
        framework.begin(size, size, False)
    with torch.cuda.graph(graph, stream=stream):
        framework.launch()
    torch.cuda.current_stream().wait_stream(stream)
    for name in "stuv":
        framework.drop(name)
    worst = 0.0
    for turn in range(40):
        names, left, requests = choose.sample("stuv", choose.randint(1, 4)), size, []
        for rest, name in zip(reversed(range(len(names))), names):
            count = 1 if turn % 3 else choose.randint(1, left - rest)
            left -= count
            requests.append((name, [choose.randrange(512) for _ in range(count)]))
        framework.give(requests, len(requests), size)
        framework.begin(len(requests), size, True)
        graph.replay()
        found = framework.head(framework.last).clone()
        worst = max(worst, compare(f"broken {turn}", found, owned.step(requests), 0.01))
        for name in [n for n in names if framework.lengths[n] > 300]:
            framework.drop(name)
            owned.drop(name)
    return worst


def asleep(framework, tensors, owned):
    """What vLLM's sleep at level 2 does, and a trainer after it: all that weights and values lay in is lost, and the tensors come one
    by one, from the device, each in an update of its own."""
    [model], pages = framework.ranks, len(framework.ranks[0].cache)
    for lost in framework.memory[:-pages]:
        lost.fill_(255)
    tensors = {name: tensor.to(framework.device) for name, tensor in tensors.items()}
    stream = torch.cuda.current_stream(framework.device).cuda_stream
    begin = time.perf_counter()
    for name, tensor in tensors.items():
        given = tensor.clone()
        with model.loading(update=True) as load:
            load.feed(name, given, stream)
        # Its owner may overwrite it as soon as the stream has packed it.
        given.fill_(255)
    print(f"{len(tensors)} tensors, one by one, in {time.perf_counter() - begin:.3f} s")
    return mixtures(framework, owned, 20, 0.01)


def lying(tensor, how):
    """The same numbers in other places."""
    if how == "turned":
        return tensor.t().contiguous().t()
    if how == "apart":
        wide = torch.zeros(
            *tensor.shape[:-1], tensor.shape[-1] + 3, dtype=tensor.dtype, device=tensor.device
        )
        wide[..., 1:-2] = tensor
        return wide[..., 1:-2]
    return tensor


def packed(artifact, device, tensors):
    """Weights of tensors of every type, wherever they lie, are byte for byte what the host makes of them."""
    for kind in torch.bfloat16, torch.float16, torch.float32, torch.float64:
        for how in "in order", "turned", "apart":
            made = []
            for place in "cpu", device:
                memory: list[torch.Tensor] = []

                def allocate(size, memory=memory):
                    memory.append(torch.zeros(size, dtype=torch.uint8, device=device))
                    return memory[-1].data_ptr()

                stream = torch.cuda.current_stream(device).cuda_stream
                model = atomc.Model(artifact, device, stream=stream, allocate=allocate)
                with model.loading() as load:
                    for number, (name, tensor) in enumerate(tensors.items()):
                        # Whatever bits spell, and other numbers that have to be rounded.
                        torch.manual_seed(number)
                        bits = (
                            torch.randint(-(2**31), 2**31, tensor.shape).int().view(torch.float32)
                        )
                        given = torch.where(
                            torch.rand(tensor.shape) < 0.5, bits, torch.randn(tensor.shape)
                        ).to(kind)
                        given = given.to(place)
                        load.feed(name, lying(given, how) if tensor.ndim == 2 else given, stream)
                made.append(torch.cat(memory).cpu())
            assert torch.equal(*made), (kind, how)


def main(device, checkpoint, artifact, shared=None):
    torch.cuda.set_device(torch.device(device))
    checkpoint, artifact = pathlib.Path(checkpoint), atomc.Artifact(artifact)
    torch.zeros(1, device=device)
    begin = time.perf_counter()
    atomc.Model(artifact, device)
    print(f"opened in {time.perf_counter() - begin:.3f} s beside torch's context")
    tensors = dict(read(checkpoint / "model.safetensors"))
    before = torch.cuda.memory_allocated()
    framework = Framework(artifact, device, tensors)
    weights = sum(tensor.numel() * 2 for tensor in tensors.values())
    assert torch.cuda.memory_allocated() - before > weights
    assert (
        framework.hidden.device == torch.device(device) and framework.hidden.dtype == torch.bfloat16
    )
    owned = Owned(artifact, device, checkpoint)
    print("mixtures:", mixtures(framework, owned, 60, 0.01))
    print("captured:", captured(framework, Owned(artifact, device, checkpoint)))
    print("captured without beginnings:", broken(framework, Owned(artifact, device, checkpoint)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        framework = Framework(artifact, device, tensors)
        print(
            "on another stream:", mixtures(framework, Owned(artifact, device, checkpoint), 20, 0.01)
        )
    request = [("reload", [1, 2, 3])]
    first = framework.step(request)
    framework.load(
        framework.ranks[0],
        {n: t * 2 if n == "model.norm.weight" else t for n, t in tensors.items()},
    )
    framework.drop("reload")
    assert (framework.step(request) == first * 2).all()
    packed(artifact, device, tensors)
    print("weights of tensors on the device are the host's")
    print(
        "asleep:",
        asleep(Framework(artifact, device, tensors), tensors, Owned(artifact, device, checkpoint)),
    )
    caller = Framework(artifact, device, tensors, attention="caller")
    print(
        "attention of the caller's:", mixtures(caller, Owned(artifact, device, checkpoint), 8, 0.02)
    )
    if shared:
        ranks = Framework(atomc.Artifact(shared), device, tensors)
        print("two ranks:", mixtures(ranks, Owned(artifact, device, checkpoint), 20, 0.02))
    print("good")


if __name__ == "__main__":
    main(*sys.argv[1:])
