"""A small synthetic checkpoint, so that everything can be tried on a machine that has no model at all."""
