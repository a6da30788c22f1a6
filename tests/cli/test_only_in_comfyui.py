"""Families whose text only ComfyUI encodes are refused on the command line by one sentence that
names the node.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from speed_erase.speed_ops.checkpoints.source import ModelSource
from speed_erase.speed_ops.cli import main as main
from speed_erase.speed_ops.errors import UnsupportedModelError
from speed_erase.speed_ops.models.families import ARCHITECTURES, by_name

KEYS = Path(__file__).parents[1] / "models" / "recorded_keys.json"
RECORDED = json.loads(KEYS.read_text(encoding="utf-8"))
ONLY_IN_COMFYUI = [family.name for family in ARCHITECTURES if not family.on_command_line]


def write(path: Path, family: str) -> Path:
    """A file with the keys of a family and no content on the disk."""
    header, end = {}, 0
    for key, shape in RECORDED[family].items():
        size = 2 * math.prod(shape)
        header[key] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    encoded = json.dumps(header).encode()
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(encoded)) + encoded)
        handle.truncate(8 + len(encoded) + end)
    return path


@pytest.mark.parametrize("family", ONLY_IN_COMFYUI)
def test_a_family_that_only_comfyui_reads_is_refused_with_the_way_out(
    family: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        ModelSource.open(write(tmp_path / "model.safetensors", family))
    assert refusal.value.data["advice"] == "use-comfyui"
    assert by_name(family).title in str(refusal.value)


def test_the_answer_is_one_sentence_and_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write(tmp_path / "model.safetensors", "anima")
    command = ["erase", str(model), "--concepts", "hulk", "--out", str(tmp_path / "out")]
    assert main(command) != 0
    (answer,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert "SPEED Erase" in answer and by_name("anima").title in answer
    assert not (tmp_path / "out").exists()
