"""The words of a command line as `kiln` reads them: options after the command, and home folders in full."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

# Options that every goal accepts, and that may stand before it: kiln --quiet build net.onnx.
_GENERAL = re.compile(r"-q|--quiet|-n|--dry-run|-k|--keep-going|-h|--help|-j\d+|--jobs=\d+")
_HOME = re.compile(r"(^|[=,])~(?=/|$)")


def normalised(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """`words` with general options that stand before one of the `commands` at the end, and without `~`.

    `help COMMAND` becomes `COMMAND -h`. A shell replaces `~` at the beginning of a word, but few do so in
    `cache=~/kiln` or `--out=~/x`.
    """
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "-h"]
    count = next((number for number, word in enumerate(words) if not _GENERAL.fullmatch(word)), len(words))
    if 0 < count < len(words) and words[count] in commands:
        words = [*words[count:], *words[:count]]
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises an error where there is none
    return [_HOME.sub(lambda match: match[1] + home, word) for word in words]
