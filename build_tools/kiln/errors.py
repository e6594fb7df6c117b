"""The one exception a user may see, always as a single line."""


class KilnError(Exception):
    """What the user asked for cannot be done.

    The message is one line that names the file, key or axis at fault, the value found and what is
    allowed. Command lines print it as ``kiln: error: …`` and exit with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
