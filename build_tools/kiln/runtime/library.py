"""The shared library of a bundle: its functions with their C types, and its errors as exceptions."""

from __future__ import annotations

import copyreg
import ctypes
import platform
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.manifest import read_manifest
from kiln.runtime import structs

_POINTER = ctypes.c_void_p
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "kiln_open": (ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
    "kiln_close": (None, [_POINTER]),
    "kiln_run": (ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
    "kiln_begin": (ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
    "kiln_step": (ctypes.c_int, [_POINTER]),
    "kiln_steps_left": (ctypes.c_uint32, [_POINTER]),
    "kiln_reset": (ctypes.c_int, [_POINTER]),
    "kiln_error": (ctypes.POINTER(structs.CDetail), [_POINTER]),
    "kiln_plan": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "kiln_plan_dims": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "kiln_tensor_shape": (ctypes.c_size_t, [_POINTER, _POINTER, _POINTER]),
    "kiln_status_name": (ctypes.c_char_p, [ctypes.c_int]),
    "kiln_detail_text": (ctypes.c_size_t, [_POINTER, _POINTER, ctypes.c_size_t]),
    "kiln_pool_open": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "kiln_pool_close": (ctypes.c_int, [_POINTER]),
    "kiln_map_params": (ctypes.c_int, [ctypes.c_char_p, _POINTER, _POINTER]),
    "kiln_unmap_params": (None, [_POINTER, ctypes.c_size_t]),
}


class RunError(KilnError):
    """An error that the C runtime reported. The message is the text of `kiln_detail_text`.

    `status` is the enumerator's name, such as "KILN_DIM_RANGE". `name`, `index`, `axis`, `value`, `min`,
    `max` and `multiple` are the fields of `kiln_detail`: the tensor or dimension at fault, the allowed sizes.
    """

    def __init__(self, status: str, text: str, detail: structs.CDetail | None) -> None:
        super().__init__(f"{status}: {text}" if text else status)
        self.status = status
        self.name = detail.name.decode(errors="replace") if detail is not None and detail.name else None
        fields = detail if detail is not None else structs.CDetail(index=-1, axis=-1)
        self.index: int = fields.index
        self.axis: int = fields.axis
        self.value: int = fields.value
        self.min: int = fields.min
        self.max: int = fields.max
        self.multiple: int = fields.multiple

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its text and fields: a worker process hands its error to the process that waits."""
        return copyreg.__newobj__, (RunError, str(self)), self.__dict__  # type: ignore[attr-defined]


class BundleLibrary:
    """A loaded bundle: `manifest`, the model's C structure `model`, and `c` with the functions of kiln.h.

    Raises KilnError if `folder` holds no bundle, or one without a shared library, for another processor, or
    of another version of Kiln.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # the program may change its folder before it copies the network
        self.manifest = read_manifest(folder)
        self.name: str = self.manifest["name"]
        self.path = folder / "lib" / f"lib{self.name}.so"
        self.c = _loaded(self.path, self.manifest["target"]["name"])
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.model = structs.CModel.in_dll(self.c, self.name)
        if self.model.abi != structs.ABI:
            raise KilnError(
                f"{self.path}: built for version {self.model.abi} of the ABI of kiln.h, this package reads "
                f"{structs.ABI}: build the bundle again, or install the version of Kiln that built it"
            )

    def check(self, status: int, detail: structs.CDetail | None) -> None:
        """Raise RunError for any status but KILN_OK."""
        if status == 0:
            return
        text = b""
        if detail is not None:
            buffer = ctypes.create_string_buffer(600)
            self.c.kiln_detail_text(ctypes.byref(detail), buffer, len(buffer))
            text = buffer.value
        raise RunError(self.c.kiln_status_name(status).decode(), text.decode(errors="replace"), detail)


_LOADED: dict[Path, list[tuple[int, int]]] = {}  # by path: device and inode of the files loaded from there


def _name_for_the_loader(path: Path) -> str:
    """A name of the file at the absolute `path`: another one for each file that this process loads there.

    For a name that it knows, glibc returns the library that it has, also if a build has replaced the file.
    """
    found = path.stat()
    files = _LOADED.setdefault(path, [])
    file = (found.st_dev, found.st_ino)
    if file not in files:
        files.append(file)
    return f"{path.parent}/{'./' * files.index(file)}{path.name}"


def _loaded(path: Path, target: str) -> ctypes.CDLL:
    if not path.is_file():
        raise KilnError(
            f"{path}: no such file: target {target} builds no shared library; use a bundle for a target that "
            "does, such as target=host"
        )
    name = _name_for_the_loader(path.resolve())
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        # For a library of another processor, glibc says that there is no such file.
        reason = str(error).replace(f"{name}: ", "")
        raise KilnError(
            f"{path}: cannot be loaded on this machine ({platform.machine()}): it is for target {target}; "
            f"the system's reason: {reason}"
        ) from None
