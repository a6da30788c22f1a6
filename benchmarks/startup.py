"""How long ComfyUI takes to load this package, against another checkout of it.

    python -m benchmarks.startup --against FOLDER

Each start is a new process in which torch and ComfyUI are imported already. The two folders take
turns, and the medians of CPU time are compared, so that the ratio holds on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepare_comfyui(folder: str) -> None:
    """Imports torch and what ComfyUI itself has loaded before custom nodes."""
    sys.path.insert(0, folder)
    import utils.install_util  # noqa: F401  before transformers, which has a module `utils`, too
    from comfy.cli_args import args

    args.cpu = True
    import aiohttp.web  # noqa: F401
    import comfy.samplers
    import comfy.sd  # noqa: F401
    import comfy_api.latest  # noqa: F401
    import folder_paths  # noqa: F401
    import numpy  # noqa: F401
    import PIL.Image  # noqa: F401
    import server  # noqa: F401
    import torch  # noqa: F401


def start(folder: str) -> tuple[float, int]:
    """Loads the package as ComfyUI does; returns seconds and the number of its modules."""
    name = "speed_started"
    path = Path(folder)
    where = {"submodule_search_locations": [str(path)]}
    spec = importlib.util.spec_from_file_location(name, path / "__init__.py", **where)
    assert spec is not None and spec.loader is not None
    gc.freeze()  # or else one of the folders pays for collecting what torch and ComfyUI made
    began = time.process_time()
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)

    async def nodes() -> list:
        extension = await package.comfy_entrypoint()
        return await extension.get_node_list()

    for node in asyncio.run(nodes()):
        node.GET_SCHEMA()
    seconds = time.process_time() - began
    return seconds, sum(module.split(".")[0] == name for module in sys.modules)


def measure(folder: Path, comfyui: Path) -> tuple[float, int]:
    """`start` in a new process."""
    command = [sys.executable, __file__, "--start", str(folder), "--comfyui", str(comfyui)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, modules = json.loads(run.stdout.splitlines()[-1])
    return seconds, modules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="the other checkout")
    parser.add_argument("--runs", type=int, default=5, help="starts of each folder")
    parser.add_argument("--comfyui", type=Path, default=Path.home() / "comfy" / "ComfyUI")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        prepare_comfyui(str(arguments.comfyui))
        print(json.dumps(start(arguments.start)))
        return
    folders = [ROOT] if arguments.against is None else [ROOT, arguments.against.resolve()]
    seconds: dict[Path, list[float]] = {folder: [] for folder in folders}
    modules: dict[Path, int] = {}
    for _ in range(arguments.runs):
        for folder in folders:
            duration, modules[folder] = measure(folder, arguments.comfyui)
            seconds[folder].append(duration)
    medians = [statistics.median(seconds[folder]) for folder in folders]
    for folder, median in zip(folders, medians, strict=True):
        print(f"{folder}: {modules[folder]} modules, {median * 1000:.0f} ms")
    if len(medians) == 2:
        print(f"ratio: {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
