"""Runs the command `kiln` from the source tree, for the shell script ./kiln. See kiln.command_line."""

import sys

from kiln.command_line.entry import main

sys.exit(main())
