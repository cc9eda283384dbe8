"""`python -m vitrail` is the same as `vitrail`."""

import sys

from vitrail.cli import main

sys.exit(main())
