"""Model files without ComfyUI: open, clean, save, verify, many at a time, and the demo's own."""
