"""From prompts to embeddings: CLIP and T5 from a file's own weights, and rows that are remembered
on disk.
"""
