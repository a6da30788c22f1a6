"""What a user of the command line can do about a fault or a note, in terms of its flags."""

from __future__ import annotations

from ..errors import user_message

ADVICE = {
    "give-text-encoder": "Give it with --text-encoder PATH (a safetensors file or folder).",
    "allow-overwriting": "Or allow overwriting with --force.",
    "less-effort": "To encode fewer, use `erase --effort quick`.",
    "keep-fewer-names": "To encode fewer, keep fewer names (`--retain-limit`).",
    "use-comfyui": "Open it there with SPEED Erase.",
    "concept-file": "Use --concepts-file FILE.",
    "tokenizer": "Use --tokenizer PATH.",
    "give-named-recipe": "Give the recipe that has them with --recipe FILE.",
}
"""Key of an advice in `data["advice"]` -> the sentence that is added."""


def advised(message: BaseException | str) -> str:
    """A fault or a note as one line, with the advice that goes with it."""
    text = user_message(message) if isinstance(message, BaseException) else str(message)
    advice = ADVICE.get(getattr(message, "data", {}).get("advice", ""))
    return f"{text} {advice}" if advice else text
