"""From concepts to rows of prompts: which tokens stand for a name, and which rows to ask an encoder for."""
