"""Work on model files without ComfyUI: read one, clean it, save the results, and check what others have saved."""
