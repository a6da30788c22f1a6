"""Two models and a set of prompts: the pictures of both, what judges say about them, and a page to
share.
"""
