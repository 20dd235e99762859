"""Run the command: ``python -m servemark.cli``."""

import sys

from servemark.cli.main import main

sys.exit(main())
