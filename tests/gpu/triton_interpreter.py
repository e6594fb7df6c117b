"""Runs kernels of Triton's templates on this processor, by Triton's interpreter: a program of its own.

A line of its input is a kernel's request (kiln.byoc.triton.compiler.KernelRequest) with `grid` and `args`:
addresses are not known here, so each array is a file, {"file": path, "dtype": name, "shape": […]}, that is
read and written back; dynamic sizes are numbers. A line of its output answers each: "done", or what went
wrong.
"""

import importlib
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])  # the folder with templates/

import ml_dtypes  # noqa: F401  # registers bfloat16
import numpy as np  # after the environment is set

_NAMES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "fp32",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
}


class Array:
    """An array with the methods of a PyTorch tensor that the interpreter calls.

    The interpreter would multiply the bits of bfloat16 as integers, so it gets float32 of the same values.
    """

    def __init__(self, path, dtype, shape):
        self.path, self.dtype, self.shape = path, _NAMES[dtype], tuple(shape)
        self.stored = np.dtype(dtype)
        self.numbers = np.fromfile(path, self.stored)
        if dtype == "bfloat16":
            self.numbers = self.numbers.astype(np.float32)

    def write(self):
        self.numbers.astype(self.stored).tofile(self.path)

    def data_ptr(self):
        return self.numbers.ctypes.data

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        copy = object.__new__(Array)
        copy.__dict__.update(self.__dict__)
        return copy

    def set_(self, *_):
        return self

    def copy_(self, _other):
        return self

    def storage_offset(self):
        return 0

    def size(self):
        return self.shape

    def stride(self):
        return tuple(int(np.prod(self.shape[axis + 1 :])) for axis in range(len(self.shape)))

    def element_size(self):
        return self.numbers.itemsize


def run(request):
    kernel = getattr(importlib.import_module(f"templates.{request['template']}"), request["kernel"])
    arrays = {
        name: Array(given["file"], given["dtype"], given["shape"]) if isinstance(given, dict) else given
        for name, given in request["args"].items()
    }
    with np.errstate(all="ignore"):
        kernel[tuple(request["grid"])](**request["constants"], **arrays)
    for array in arrays.values():
        if isinstance(array, Array):
            array.write()


for line in sys.stdin:
    try:
        run(json.loads(line))
        print("done", flush=True)
    except Exception as error:  # the interpreter may raise anything
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
