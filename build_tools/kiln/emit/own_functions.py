"""Objects of the user's own operators in C, and their compiler's errors in the user's terms."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.config import Target
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.run_time_library import missing_symbols
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.lower.schema import ExternalCode, OwnFunction

# A function without a declaration of its own is visible to all objects, and two operators may have one name.
_FLAGS = ("-O3", "-fno-math-errno", "-Wmissing-prototypes", "-Werror=missing-prototypes")
_OUTSIDE = re.compile(r"(?:no previous (?:prototype|declaration)) for (?:function )?['‘](\w+)['’]")


def compile_own(symbol: str, code: ExternalCode, target: Target, folder: Path) -> None:
    """Compile a user's function, with the flags of its variant; object and source are named after the symbol.

    Raises KilnError, naming the user's file, where the compiler refuses it, where it does not define the
    function as it is called, and where it calls a function that a device may lack.
    """
    function = code.own
    assert function is not None
    source, out = folder / f"{symbol}.c", folder / f"{symbol}.o"
    atomic_write(source, code.source)
    try:
        compile_file([*c_flags(target), *_FLAGS], source, out)
    except KilnError as error:
        raise KilnError(_explained(function, str(error))) from error
    missing = missing_symbols(out, target)
    if function.function in missing:
        raise KilnError(
            f"{function.file}: it defines no function '{function.function}', expected: {function.declared}"
        )
    if missing:
        raise KilnError(
            f"{function.file}: it calls {', '.join(missing)}, which a device without a C library lacks; "
            "allowed: memcpy, memmove, memset; a body in Relax has mathematical functions"
        )


def _explained(function: OwnFunction, text: str) -> str:
    """The compiler's error in one line that begins with the user's file."""
    if re.search(rf"conflicting types for ['‘]{re.escape(function.function)}['’]", text):
        return (
            f"{function.file}: function '{function.function}' is declared in another way, expected: "
            f"{function.declared}"
        )
    outside = _OUTSIDE.search(text)
    if outside is not None:
        only = f"as only '{function.function}' is called"
        return f"{function.file}: function '{outside[1]}' must be static, {only}"
    position = text.find(function.file)
    return text[position:] if position >= 0 else f"{function.file}: {text}"
