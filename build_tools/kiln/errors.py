"""The one exception that a user sees, always as a single line."""

from unicodedata import category

MOST_CHARACTERS = 2000
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # Unicode's categories


class KilnError(Exception):
    """What the user asked for cannot be done.

    The message is one line that names the file, key or axis at fault, the value found and what is
    allowed. Command lines print it as ``kiln: error: …`` and exit with status 2. A message quotes names from
    untrusted files: characters that a terminal would act on are written as escapes, and it ends after
    `MOST_CHARACTERS`.
    """

    def __init__(self, message: str) -> None:
        text = printable(" ".join(message.split()))
        super().__init__(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…")


def printable(text: str) -> str:
    """`text` with control characters, marks of writing direction and lone surrogates as `\\uXXXX`."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(char):04x}" if category(char) in _HIDDEN else char for char in text)
