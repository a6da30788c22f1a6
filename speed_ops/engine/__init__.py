"""The paper and its frontier: rows and weights in, exact low-rank edits out. Knows no prompt, no
file and no host.
"""
