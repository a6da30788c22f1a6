"""Many models on many machines, through Ray: models and results at URLs."""
