"""Recognise what was given instead of a safetensors file, and say what to do about it."""

from __future__ import annotations

from pathlib import Path

from ..errors import FileError

PICKLE_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")


def refuse_other_formats(path: Path, start: bytes, *, plausible: bool) -> None:
    """Raise for what its name or its first 8 bytes show to be something else.

    In a true safetensors file those bytes are the length of the header and can have any value: they are judged only
    when they are not `plausible` as a length.
    """
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise pickle_refusal(path)
    if plausible:
        return
    if start[:4] == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        raise pickle_refusal(path)
    if start[:4] == b"GGUF":
        raise FileError(
            f"{path} is a GGUF file, whose weights are packed: use the fp16, bf16 or fp32 safetensors file."
        )
    if start[:7] == b"version":
        raise FileError(f"{path} is a Git LFS pointer, not the model itself: run `git lfs pull` or download the file.")
    if start[:1] == b"<":
        raise FileError(f"{path} is a web page, not a model: the download failed; download it again.")


def pickle_refusal(path: Path) -> FileError:
    """The sentence for a pickle checkpoint, which can run any code when it is opened."""
    return FileError(
        f"{path} is a pickle checkpoint, which can run code when it is opened, and is not read here: convert it to"
        " safetensors first (in ComfyUI: Load Checkpoint, then Save Checkpoint) and use the new file."
    )
