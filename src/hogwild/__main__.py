"""``python -m hogwild``: the command line."""

import sys

from hogwild.cli import main

sys.exit(main())
