"""How long an update of all weights takes that a trainer gives from the GPU: by way of the host, and on the device.

    python tests/bench/update_gpu.py cuda:0 ARTIFACT CONFIG [--repeat N]

ARTIFACT was compiled of CONFIG (e.g. tests/bench/qwen3-8b.json) for the device. The tensors are random, of the shapes that CONFIG
says, in bf16. Both ways have to leave the same bytes.
"""

import argparse
import json
import pathlib
import time

import torch

import atomc


def shapes(config):
    """Name and shape of every tensor of a model of Qwen's or Llama's kind."""
    wide, inner, layers = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
    )
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or wide // heads
    yield "model.embed_tokens.weight", (config["vocab_size"], wide)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, rows in ("q", heads), ("k", shared), ("v", shared):
            yield f"{at}self_attn.{name}_proj.weight", (rows * dim, wide)
        yield f"{at}self_attn.o_proj.weight", (wide, heads * dim)
        if "qwen3" in config["model_type"]:
            yield f"{at}self_attn.q_norm.weight", (dim,)
            yield f"{at}self_attn.k_norm.weight", (dim,)
        yield f"{at}mlp.gate_proj.weight", (inner, wide)
        yield f"{at}mlp.up_proj.weight", (inner, wide)
        yield f"{at}mlp.down_proj.weight", (wide, inner)
        yield f"{at}input_layernorm.weight", (wide,)
        yield f"{at}post_attention_layernorm.weight", (wide,)
    yield "model.norm.weight", (wide,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], wide)


def at_once(model, tensors, give):
    with model.loading(update=True) as load:
        for name, tensor in tensors.items():
            load.feed(name, give(tensor), torch.cuda.current_stream().cuda_stream)


def one_by_one(model, tensors, give):
    for item in tensors.items():
        at_once(model, dict([item]), give)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device")
    parser.add_argument("artifact")
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    torch.cuda.set_device(torch.device(args.device))
    memory = []

    def allocate(size):
        memory.append(torch.zeros(size, dtype=torch.uint8, device=args.device))
        return memory[-1].data_ptr()

    model = atomc.Model(atomc.Artifact(args.artifact), args.device, allocate=allocate)
    config = json.loads(args.config.read_text())
    tensors = {
        n: torch.randn(s, dtype=torch.bfloat16, device=args.device) for n, s in shapes(config)
    }
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(f"{len(tensors)} tensors, {size / 1e9:.2f} GB")
    ways = {
        "by way of the host": lambda tensor: tensor.cpu().contiguous(),
        "on the device": lambda tensor: tensor,
    }
    first = []
    for way, give in ways.items():
        for update in at_once, one_by_one:
            times, calls = [], []
            for _ in range(args.repeat):
                for lost in memory:
                    lost.fill_(255)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                update(model, tensors, give)
                calls.append(time.perf_counter() - begin)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
            best = min(times)
            rate = f"{size / best / 1e9:.1f} GB/s of tensors"
            print(
                f"{way}, {update.__name__}: {best * 1e3:.2f} ms, {min(calls) * 1e3:.2f} ms of the caller's, {rate}"
            )
            first = first or [part.clone() for part in memory]
            assert all(map(torch.equal, first, memory)), f"{way}, {update.__name__}: other bytes"
    print("the same bytes")


if __name__ == "__main__":
    main()
