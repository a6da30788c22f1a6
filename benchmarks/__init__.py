"""Measurements that steer the project: solver speed and a small living model."""
