# PYTHON_ARGCOMPLETE_OK
"""`python -m speed_erase.speed_ops.cli`: the same as the console script."""

import sys

from .main import main

sys.exit(main())
