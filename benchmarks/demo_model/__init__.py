"""How the demo's model was made: its world, the training and the packing."""
