"""What is left against what drifts, on text encoders that nobody here trained: `python -m
benchmarks.frontier`.
"""
