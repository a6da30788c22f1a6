"""The paper: rows and weights in, exact low-rank edits out. No prompt, no file, no host."""
