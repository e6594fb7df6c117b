"""An argument parser whose errors are one line that names the allowed choice nearest to the wrong one."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from kiln.config.check import nearest
from kiln.errors import KilnError

_INVALID = re.compile(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are KilnError."""

    def error(self, message: str) -> NoReturn:
        found = _INVALID.fullmatch(message)
        if found is not None:
            known = [word.strip("' ") for word in found[3].split(",")]
            message = f"{found[1]}: '{found[2]}'{nearest(found[2], known) or ';'} known: {', '.join(known)}"
        raise KilnError(f"{message} ({self.prog} -h lists the arguments)")
