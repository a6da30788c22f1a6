"""Compares what an original and an erased model generate from the same prompts and seeds."""
