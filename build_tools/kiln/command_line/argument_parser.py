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
        match = _INVALID.fullmatch(message)
        if match is not None:
            allowed = [word.strip("' ") for word in match[3].split(",")]
            message = (
                f"{match[1]}: '{match[2]}'{nearest(match[2], allowed) or ';'} known: {', '.join(allowed)}"
            )
        raise KilnError(f"{message} ({self.prog} -h lists the arguments)")
