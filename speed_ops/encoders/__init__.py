"""From prompts to embeddings: CLIP and T5 from a file's own weights, and a cache on disk."""
