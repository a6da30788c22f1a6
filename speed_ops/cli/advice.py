"""What a user of the command line can do about a fault or a note, in terms of its flags."""

from __future__ import annotations

from ..errors import error_code, user_message

ADVICE = {
    "give-text-encoder": "Give it with --text-encoder PATH (a safetensors file or folder).",
    "allow-overwriting": "Or allow overwriting with --force.",
    "less-effort": "To encode fewer, use `erase --effort fast`.",
    "keep-fewer-names": "To encode fewer, keep fewer names (`--retain-limit`).",
    "use-comfyui": "Open it there with SPEED Erase.",
    "concept-file": "Use --concepts-file FILE.",
    "tokenizer": "Use --tokenizer PATH.",
    "give-server": "Give --server to draw anything else.",
    "start-ray": "Start one with `ray start --head`, or give no address to work on this machine.",
    "unexpected": "Run again with --debug and report what it shows.",
    "give-named-recipe": "Give the recipe that has them with --recipe FILE.",
}
"""Key of an advice in `data["advice"]`, or error code -> the sentence that is added."""


def advised(message: BaseException | str) -> str:
    """A fault or a note as one line, with the advice that goes with it."""
    text, key = str(message), getattr(message, "data", {}).get("advice", "")
    if isinstance(message, BaseException):
        text, key = user_message(message), key or error_code(message)
    return f"{text} {ADVICE[key]}" if key in ADVICE else text
