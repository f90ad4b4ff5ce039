"""Artifacts that are compiled when a framework starts, and kept for the next time."""

import os
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

# How a framework's log says why nothing was compiled.
FAULT = "atomc: ATOMC_AUTOCOMPILE: %s"


def artifact(
    model: Path, facts: str, *options: str, compiler: str, warn: Callable[[str, str], None]
) -> Path | None:
    """The artifact of a Hugging Face folder under these options of `atomc compile`: compiled now, unless the same compiler has
    compiled the same configuration before. `facts` is the model's config.json as a framework has resolved it. `compiler` is a path,
    or empty for `atomc` on the path; XDG_CACHE_HOME is where artifacts are kept. Without a compiler, or if it refuses the model,
    `warn` gets a line and the reason."""

    named = compiler or "atomc"
    found = shutil.which(named)
    if found is None:
        warn(FAULT, f"ATOMC_COMPILER: there is no {named}")
        return None
    version = subprocess.run(
        [found, "--version"], check=True, capture_output=True, text=True
    ).stdout
    content = sha256("\0".join([version, *options, facts]).encode())
    generation = model / "generation_config.json"
    content.update(b"\0" + (generation.read_bytes() if generation.exists() else b""))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atomc"
    path = cache / f"{content.hexdigest()}.atomc"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(facts)
            if generation.exists():
                shutil.copy(generation, folder)
            done = subprocess.run(
                [found, "compile", folder, *options, "-o", path], capture_output=True, text=True
            )
        if done.returncode:
            warn(FAULT, f"atomc compile {model}: {done.stderr.strip()}")
            return None
    return path
