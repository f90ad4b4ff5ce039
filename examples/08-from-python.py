"""Answers a prompt with the package atomc: bash examples/08-from-python.sh."""

import sys
from pathlib import Path

from tokenizers import Tokenizer

import atomc

artifact, folder, question = sys.argv[1:]
tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))

engine = atomc.Engine(atomc.Artifact(artifact))
engine.load(folder)
answer = engine.generate(tokenizer.encode(question).ids, 64)
print(tokenizer.decode(answer), f"({len(answer)} tokens on {engine.device})")
