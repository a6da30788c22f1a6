"""What is left against what drifts, on text encoders from elsewhere."""
