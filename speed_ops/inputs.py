"""The text inputs of a model: each gets its own rows and its own edit, through the same code."""

TOKENS = "tokens"
"""A prompt, row by row. Every model has this input, and it comes first."""
POOLED = "pooled"
"""One embedding of the whole prompt (SDXL, SD3, Flux)."""
INPUT_TITLES = {TOKENS: "Prompt", POOLED: "Pooled text input"}
"""What people call them."""
