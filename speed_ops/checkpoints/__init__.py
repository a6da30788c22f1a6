"""Model files without ComfyUI: open, erase, save, verify, many at a time."""
