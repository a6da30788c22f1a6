"""The demo: a small model of Stable Diffusion 1.x's layout, packed in a file, and what makes images
with it in plain torch. Nothing in the core or in ComfyUI's startup imports this.
"""
