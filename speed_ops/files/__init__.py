"""Single files, read suspiciously and written whole or not at all: safetensors, LoRA, recipe,
header metadata.
"""
