"""Lets a torchvision wheel built for CUDA be imported beside a CPU torch, in the environment that
runs this script.

Such a wheel stops at the first custom operator that its missing library would have registered.
Declaring the operators' schemas is enough for the parts written in Python. A machine with a
matching pair of wheels needs none of it, and nothing is changed there.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

HOOK = '''
import sys


class DeclareOperators:
    """Comes first in the import order; declares torchvision's operators when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        DeclareOperators.library = library = torch.library.Library("torchvision", "FRAGMENT")
        boxes = "Tensor dets, Tensor scores, float iou_threshold"
        align = "Tensor input, Tensor rois, float spatial_scale"
        align += ", SymInt pooled_height, SymInt pooled_width"
        for schema in (
            f"nms({boxes}) -> Tensor",
            f"qnms({boxes}) -> Tensor",
            f"roi_align({align}, int sampling_ratio, bool aligned) -> Tensor",
        ):
            library.define(schema)
        return None


sys.meta_path.insert(0, DeclareOperators())
'''


def main() -> None:
    works = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True)
    if works.returncode == 0:
        return
    site = Path(sysconfig.get_paths()["purelib"])
    (site / "declare_torchvision.py").write_text(HOOK)
    (site / "declare_torchvision.pth").write_text("import declare_torchvision\n")
    subprocess.run([sys.executable, "-c", "import torchvision"], check=True)


if __name__ == "__main__":
    main()
