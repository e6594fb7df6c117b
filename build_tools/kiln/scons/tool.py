"""The SCons tool of Kiln: adds its methods to an environment of an SConstruct.

    env = Environment(tools=["default", "kiln"])
    bundle = env.KilnBundle("resnet", target="aarch64")
    env.Program("camera", ["camera.c", bundle.library], CPPPATH=[bundle.include])

Methods of the environment; `model` and `target` are names or paths to a .yaml (model: .onnx, … too):
KilnBundle   declares the bundle build/<target>/<model>/ and its .tar.gz
KilnTest     runs the bundle on its golden vectors, on the target's runner or device="pi4"
KilnRun      runs the bundle on an image and prints the result
KilnDevice   KilnDevice("flash", "resnet", device="pi4") installs the bundle; also "rollback", "status"
KilnProgram  KilnProgram("flash", "firmware.elf", device="m4") loads a linked program through a gdb server
KilnDevices  lists the devices
KilnBench    times the bundle, on the target's runner or device="pi4"
KilnTune     times the model's kernels; later builds use the fastest
KilnPackage  makes a package of the bundle for other tools: package="zephyr", "arduino", "npm", ...
KilnSize     prints the bundle's flash and RAM
KilnJoint    several models in one library
KilnSchemas  JSON Schemas of the YAML files, for editors
KilnAlias, KilnOptions, KilnHelp   the command line of Kiln's own SConstruct

Methods with a model also take the options of the command line: `byoc`, `precision`, `dims`, `variants`,
`device` and `dump`, which is True or False.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from kiln.errors import KilnError
from kiln.files import error_text
from kiln.scons import failure


def generate(env: Any) -> None:
    """Add Kiln's methods to an SCons environment."""
    from kiln.scons import methods

    failure.install()
    for method in methods.METHODS:
        env.AddMethod(one_line(method), method.__name__)


def one_line(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `method`: on a user's error, print one line and end SCons with status 2."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except KilnError as error:
            line = str(error)
        except OSError as error:  # the build folder cannot be read or written
            line = error_text(error)
        except TypeError as error:
            # SCons raises it for a file where it needs a folder, and for a folder where it needs a file.
            found = re.match(r"(File|Directory) (.*) found where (?:file|directory) expected", str(error))
            if found is None:
                raise
            kinds = ("file", "folder") if found[1] == "File" else ("folder", "file")
            line = "{}: a {}, where the build writes a {}: remove it".format(
                os.path.relpath(found[2]), *kinds
            )
        print(f"kiln: error: {line}", file=sys.stderr)
        sys.exit(2)

    return call
