"""`python -m glm5_operator`."""

import sys

from .cli import main

sys.exit(main())
