"""``python -m hogwild.plots``."""

import sys

from hogwild.plots.command import main

if __name__ == "__main__":
    sys.exit(main())
