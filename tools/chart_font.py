"""Cuts the font of the charts from DejaVu Sans: Latin, Greek, Cyrillic and the signs we use.

    python tools/chart_font.py DejaVuSans.ttf LICENSE_DEJAVU

Needs fonttools. The font and its license come with Debian's fonts-dejavu-core and with matplotlib.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from fontTools import subset

FOLDER = Path(__file__).resolve().parents[1] / "speed_ops" / "report"
RANGES = (
    *((0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF)),
    *((0x1E00, 0x1EFF), (0x2010, 0x203A), (0x20AC, 0x20AC), (0x2190, 0x2193), (0x2264, 0x2265)),
)


def main() -> None:
    """Writes the font and its license next to the code that uses them."""
    source, terms = sys.argv[1:]
    options = subset.Options(hinting=False, layout_features=["kern"], notdef_outline=True)
    font = subset.load_font(source, options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=[code for low, high in RANGES for code in range(low, high + 1)])
    cutter.subset(font)
    subset.save_font(font, str(FOLDER / "chart_font.ttf"), options)
    shutil.copyfile(terms, FOLDER / "chart_font_license.txt")


if __name__ == "__main__":
    main()
