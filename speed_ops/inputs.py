"""The text inputs of a model: each gets its own rows and its own edit, through the same code."""

from typing import Literal

TOKENS = "tokens"
"""A prompt, row by row. Every model has this input, and it comes first."""
POOLED = "pooled"
"""One embedding of the whole prompt (SDXL, SD3, Flux)."""
INPUT_TITLES = {TOKENS: "Prompt", POOLED: "Pooled text input"}
"""What people call them."""
Prompting = Literal["auto", "sentences", "tags", "at-tags", "mixed"]
"""How people prompt a model. at-tags: tags in which artists are called by @name; mixed: sentences
and tags in turn; auto: as is usual for the model's family.
"""
RowMode = Literal["bare", "context"]
"""How a name is encoded. bare: alone, as in the paper; context: also inside prompts."""
Padding = Literal["informative", "masked", "none"]
"""After the end token: rows that depend on the text, rows of zeros or masked ones, or nothing."""
PROMPTING_TITLES: dict[Prompting, str] = {
    "sentences": "sentences",
    "tags": "tags",
    "at-tags": "tags with artists as @name",
    "mixed": "sentences and tags",
}
"""The same in the words of a report."""
