"""The adapter: the only modules that know ComfyUI's internals (`comfy.*`, `folder_paths`).

Import the modules one by one; node modules import from here and from `comfy_api`, the engine
imports neither.
"""
