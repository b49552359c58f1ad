"""``python -m hogwild.cli``."""

import sys

from hogwild.cli import main

sys.exit(main())
