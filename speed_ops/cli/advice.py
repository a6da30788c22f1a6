"""What to do about a fault, a note or a result, in terms of the command line's flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import error_code, user_message

if TYPE_CHECKING:
    from ..certificate.summary import Advice

ADVICE = {
    "give-text-encoder": "Give it with --text-encoder PATH (a safetensors file or folder).",
    "allow-overwriting": "Or overwrite it with --force.",
    "less-effort": "To encode fewer, use --effort fast.",
    "keep-fewer-names": "To encode fewer, protect fewer names with --retain-limit N.",
    "use-comfyui": "Open it in ComfyUI with SPEED Erase.",
    "concept-file": "Use --concepts-file FILE.",
    "give-inversion": "Give its file with --embedding FILE; the file's name is the name to write.",
    "tokenizer": "Use --tokenizer PATH.",
    "give-server": "For any other model, give a ComfyUI server with --server URL.",
    "start-ray": "Start one with `ray start --head`, or omit --address to work on this machine.",
    "unexpected": "Run again with --debug and report the traceback.",
    "give-named-recipe": "Give the recipe with the names: --recipe FILE.",
}
"""Key of an advice in `data["advice"]`, or error code -> the sentence that is added."""
TRY: dict[Advice, str] = {
    "use_auto": "--preset auto",
    "erase_fully": "--priority erase-fully",
    "closer_replacement": 'a closer replacement, such as "name -> oil painting"',
    "raise_strength": "--strength 1.1",
    "protect_fewer": "protect fewer similar names (listed in the report)",
}
"""What to try where a concept is not erased."""


def advised(message: BaseException | str) -> str:
    """A fault or a note as one line, with the advice that goes with it."""
    text, key = str(message), getattr(message, "data", {}).get("advice", "")
    if isinstance(message, BaseException):
        text, key = user_message(message), key or error_code(message)
    return f"{text} {ADVICE[key]}" if key in ADVICE else text
