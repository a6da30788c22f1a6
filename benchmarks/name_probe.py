"""`python -m benchmarks.name_probe`: does `probe --name` tell the demo model's painters from names
that it has not learned?

Painters of the demo model, real painters whose names its training did not use, and invented names
are put into the same prompts. Two minutes on one core. `--figure` writes the
figure of docs/guide/does-it-know.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.checkpoints.text_setup import TextSetup
from speed_erase.speed_ops.demo.packed_model import known_names, write_checkpoint
from speed_erase.speed_ops.name_probe import probe_name
from speed_erase.speed_ops.text.invented import invented_names
from speed_erase.speed_ops.text.retain_set import builtin_retain, retain_from_names

from .demo_model.prompts import strangers, training_prompts
from .figures import markdown_table, plots, save_figure

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "does-it-know.png"
LABELS = {
    "painters": "painters it knows",
    "unseen": "real painters it never saw",
    "invented": "invented names",
}


def names_to_test(count: int) -> dict[str, tuple[str, ...]]:
    """Three groups of names."""
    known = known_names()
    trained = {prompt.painter_words for prompt in training_prompts()}
    unseen = [name for name in strangers("artists") if name not in trained]
    invented = invented_names("Orla Venn", count, builtin_retain("artists").names, seed=1)
    return {
        "painters": (*known["painters"], *known["aliases"])[:count],
        "unseen": tuple(unseen[:: len(unseen) // count][:count]),
        "invented": invented,
    }


def auc(high: Sequence[float], low: Sequence[float]) -> float:
    """Chance that a value of the first group is above one of the second."""
    wins = sum((a > b) + (a == b) / 2 for a in high for b in low)
    return wins / (len(high) * len(low))


def run(groups: dict[str, tuple[str, ...]]) -> dict[str, list[float]]:
    """The size of every name: one call, for the first painter, with all others as known names."""
    names = [name for group in groups.values() for name in group]
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource.open(write_checkpoint(Path(folder) / "demo.safetensors"))
        encoder, weights = TextSetup().encoder(source), source.model("KV").weights
        report = probe_name(encoder, weights, names[0], known=retain_from_names(names, "all"))
    sizes = report.known_sizes | {report.name: report.size}
    return {group: [sizes[name] for name in members] for group, members in groups.items()}


def figure(sizes: dict[str, list[float]], path: Path) -> Path:
    """Each name as a dot."""
    pyplot = plots()
    drawing, axes = pyplot.subplots(figsize=(7.5, 2.4))
    for row, (group, members) in enumerate(sizes.items()):
        axes.scatter(members, [-row] * len(members), s=28, alpha=0.6)
        axes.text(-0.02, -row, LABELS[group], ha="right", va="center")
    axes.set(yticks=[], xlim=(0, None), ylim=(-2.6, 0.6), xlabel="what the name adds (size)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return save_figure(drawing, path, 150)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.name_probe", description=__doc__)
    parser.add_argument("--figure", action="store_true", help=f"write {FIGURE.name}")
    options = parser.parse_args()
    sizes = run(names_to_test(40))
    painters = sizes["painters"]
    rows = [
        (LABELS[group], str(len(values)), f"{min(values):.2f}", f"{max(values):.2f}", below)
        for group, values in sizes.items()
        for below in (f"{max(sum(p < value for p in painters) for value in values)}",)
    ]
    print(markdown_table(("", "names", "smallest", "largest", "painters below the largest"), rows))
    for group in ("unseen", "invented"):
        print(f"AUC, painters against {LABELS[group]}: {auc(painters, sizes[group]):.3f}")
    if options.figure:
        print(figure(sizes, FIGURE))


if __name__ == "__main__":
    main()
