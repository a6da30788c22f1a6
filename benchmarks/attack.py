"""The long version of the attacks that the suite runs a few of.

python -m benchmarks.attack kills --count 500     every command that writes, killed at random
python -m benchmarks.attack fuzz --count 10000    broken files, answers of servers and catalogs
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))


def kills(count: int, folder: Path) -> None:
    """Kills commands at work, as often in each way, then lets one finish. It must find nothing
    lost and nothing left over.
    """
    import mini
    from attack import KINDS, RAY_DOUBLE, Killer, Workshop

    workshop = Workshop(folder / "workshop")
    environment = {"SPEED_ERASE_CACHE": str(workshop.cache), "PYTHONPATH": RAY_DOUBLE}
    nursery = mini.Nursery("quick-demo", **environment)
    for kind in KINDS:
        killer = Killer(workshop, nursery, kind, folder / kind)
        each, strikes, caught = -(-count // len(KINDS)), 0, 0
        while caught < each:
            strikes += 1
            caught += killer.strike()
        killer.finish()
        print(f"{kind}: {strikes} kills, {caught} at work; nothing lost, nothing left", flush=True)
    nursery.close()


def fuzz(count: int, folder: Path, seconds: float = 60.0) -> None:
    """Runs with broken input: no traceback, no unexpected error, none over `seconds`."""
    from attack import Fuzzer, Workshop

    from speed_erase.speed_ops.cli import main

    codes: dict[int, int] = {}

    def survives(arguments: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        started = time.monotonic()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        said = err.getvalue()
        if code not in (0, 1, 2) or "Traceback" in said or "Unexpected error" in said:
            raise SystemExit(f"{arguments} ended with {code}:\n{said}")
        if time.monotonic() - started > seconds:
            raise SystemExit(f"{arguments} took {time.monotonic() - started:.0f} s")
        codes[code] = codes.get(code, 0) + 1

    (folder / "place").mkdir(parents=True)
    fuzzer = Fuzzer(Workshop(folder / "workshop"), folder / "place", survives)
    kinds = len(fuzzer.kinds)
    for number in range(-(-count // kinds)):
        fuzzer(number)
        if number % 50 == 49:
            print(f"{kinds * (number + 1)} inputs, exit codes {codes}", flush=True)
    print(f"{sum(codes.values())} runs, exit codes {codes}: no traceback")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("attack", choices=("kills", "fuzz"))
    parser.add_argument("--count", type=int, default=500)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"kills": kills, "fuzz": fuzz}[chosen.attack](chosen.count, Path(folder))


if __name__ == "__main__":
    main()
