"""`python -m benchmarks.name_probe [--world a|b]`: does `probe --name` tell a model's painters from
names that it has not learned?

Four groups of names are read as the known names of one probe, in three prompts each: painters of
the demo model; real painters, which its training used as words that mean no painter; real people
and invented names, which its training did not use. The 40-painter test set has real painters, so
the second group are others, which its training did not use either. About 700 prompts, less than a
minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.packed_model import known_names, write_checkpoint
from speed_erase.speed_ops.encoders.cache import CachedEncoder
from speed_erase.speed_ops.name_probe import probe_name
from speed_erase.speed_ops.text.invented import invented_names
from speed_erase.speed_ops.text.retain_set import builtin_retain, retain_from_names

from .crowd import text as crowd_text
from .crowd.model import TO_K, TO_V
from .crowd.world import PAINTERS
from .demo_model.prompts import strangers
from .figures import markdown_table
from .storage import default_folder, load_tensors

COUNT = 35
"""Names of each group but the first, which has all of the model's painters."""
LABELS = {
    "painters": "its painters, and their aliases",
    "plain": "other painters",
    "people": "real people, not in its training",
    "invented": "invented names, not in its training",
}


def names_to_test(painters: Sequence[str], count: int) -> dict[str, tuple[str, ...]]:
    """All groups of names, of a model that knows these painters."""
    plain = [name for name in strangers("artists") if name not in painters]
    people = [name for name in strangers("people") if name not in (*plain, *painters)]
    invented = invented_names(painters[0], count, builtin_retain("artists").names, seed=1)
    return {
        "painters": tuple(painters),
        "plain": tuple(plain[:: len(plain) // count][:count]),
        "people": tuple(people[:: len(people) // count][:count]),
        "invented": invented,
    }


def auc(high: Sequence[float], low: Sequence[float]) -> float:
    """Chance that a value of the first group is above one of the second."""
    wins = sum((a > b) + (a == b) / 2 for a in high for b in low)
    return wins / (len(high) * len(low))


def below(sizes: Sequence[float], painters: Sequence[float]) -> float:
    """The largest percentile that a name of this group has among the painters."""
    return max(sum(p < size for p in painters) for size in sizes) / len(painters)


def run(
    groups: dict[str, tuple[str, ...]], encoder: CachedEncoder, weights: Mapping[str, Tensor]
) -> dict[str, list[float]]:
    """The size of every name: one call, for the first painter, with all others as known names."""
    names = [name for group in groups.values() for name in group]
    report = probe_name(encoder, weights, names[0], known=retain_from_names(names, "all"))
    sizes = report.known_sizes | {report.name: report.size}
    return {group: [sizes[name] for name in members] for group, members in groups.items()}


def run_demo(count: int) -> dict[str, list[float]]:
    """The demo model, by painters and aliases."""
    known = known_names()
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource.open(write_checkpoint(Path(folder) / "demo.safetensors"))
        encoder, weights = TextSetup().encoder(source), source.model("KV").weights
        return run(names_to_test((*known["painters"], *known["aliases"]), count), encoder, weights)


def run_world(world: str, folder: Path, encoder: Path | None) -> dict[str, list[float]]:
    """A model of the 40-painter test set."""
    tensors = load_tensors(folder / "unet.safetensors")
    weights = {key: value for key, value in tensors.items() if key.endswith((TO_K, TO_V))}
    reader = CachedEncoder(crowd_text.load_encoder(world, encoder))
    return run(names_to_test([painter.name for painter in PAINTERS], COUNT), reader, weights)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.name_probe", description=__doc__)
    help = "a model of the 40-painter test set instead, by its text encoder"
    parser.add_argument("--world", choices=["a", "b"], help=help)
    parser.add_argument("--data", type=Path, default=default_folder("crowd"), help="its folder")
    parser.add_argument("--encoder", type=Path, help="folder of its text encoder")
    options = parser.parse_args()
    if options.world:
        sizes = run_world(options.world, options.data, options.encoder)
    else:
        sizes = run_demo(COUNT)
    painters = sizes["painters"]
    rows = [
        (
            LABELS[group],
            str(len(values)),
            f"{min(values):.2f}",
            f"{statistics.median(values):.2f}",
            f"{max(values):.2f}",
            "" if group == "painters" else f"{auc(painters, values):.3f}",
            "" if group == "painters" else f"{below(values, painters):.0%}",
        )
        for group, values in sizes.items()
    ]
    titles = ("", "names", "smallest", "median", "largest", "AUC", "highest percentile")
    print(markdown_table(titles, rows))


if __name__ == "__main__":
    main()
