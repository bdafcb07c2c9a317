"""``python -m deconv_ext``: see ``deconv_ext.cli``."""

import sys

from deconv_ext.cli.main import main

sys.exit(main())
