"""The C structures of kiln.h and dlpack.h that Python reads or writes, as ctypes. A test compares layouts."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, ClassVar

import numpy as np

from kiln.errors import KilnError

ABI = 14  # KILN_ABI
MAX_DIMS = 16  # KILN_MAX_DIMS
SESSION_BYTES = 4096  # at least sizeof(kiln_session)
POOL_WORDS = 193  # of 8 bytes, in kiln_pool
CPU = 1  # kDLCPU
DTYPE_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode by NumPy's kind
BFLOAT16_CODE = 4


class DLDevice(ctypes.Structure):
    """Device of a tensor."""

    _fields_: ClassVar = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    """Element type: code, bits and lanes."""

    _fields_: ClassVar = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """A tensor in the caller's memory."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class CDetail(ctypes.Structure):
    """kiln_detail: the value at fault and the allowed values."""

    _fields_: ClassVar = [
        ("status", ctypes.c_int),
        ("where", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("index", ctypes.c_int32),
        ("axis", ctypes.c_int32),
        ("value", ctypes.c_int64),
        ("min", ctypes.c_int64),
        ("max", ctypes.c_int64),
        ("multiple", ctypes.c_int64),
    ]


class CTensor(ctypes.Structure):
    """kiln_tensor: an input or output of a model. A size of -1 - k stands for dimension k of the run."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("dtype", DLDataType),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("scale", ctypes.c_float),
        ("zero_point", ctypes.c_int32),
    ]


class CDim(ctypes.Structure):
    """kiln_dim: a free dimension and its allowed sizes."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("min", ctypes.c_int64),
        ("max", ctypes.c_int64),
        ("multiple", ctypes.c_int64),
    ]


class CBucket(ctypes.Structure):
    """kiln_bucket: one build of the model for a box of sizes."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("arena_bytes", ctypes.c_size_t),
        ("steps", ctypes.c_uint32),
        ("box", ctypes.POINTER(ctypes.c_int32)),
    ]


class CVariant(ctypes.Structure):
    """kiln_variant: the steps with kernels for one kind of processor."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("cpu_features", ctypes.c_uint64),
        ("step", ctypes.c_void_p),
    ]


class CModel(ctypes.Structure):
    """kiln_model: inputs, outputs, dimensions, buckets, variants, and the requirements of sessions."""

    _fields_: ClassVar = [
        ("abi", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("inputs_count", ctypes.c_uint32),
        ("outputs_count", ctypes.c_uint32),
        ("dims_count", ctypes.c_uint32),
        ("derived_count", ctypes.c_uint32),
        ("buckets_count", ctypes.c_uint32),
        ("inputs", ctypes.POINTER(CTensor)),
        ("outputs", ctypes.POINTER(CTensor)),
        ("dims", ctypes.POINTER(CDim)),
        ("buckets", ctypes.POINTER(CBucket)),
        ("variants", ctypes.POINTER(CVariant)),
        ("variants_count", ctypes.c_uint32),
        ("arena_align", ctypes.c_size_t),
        ("params_bytes", ctypes.c_size_t),
        ("hash", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("params_trusted", ctypes.c_int32),
        ("select", ctypes.c_void_p),
        ("derive", ctypes.c_void_p),
        ("special", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("gpu", ctypes.c_void_p),
        ("gpu_model", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("states_count", ctypes.c_uint32),
        ("state_bytes", ctypes.c_size_t),
        ("open_state", ctypes.c_void_p),
        ("dynamic", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        ("regions_count", ctypes.c_uint32),
        ("open_regions", ctypes.c_void_p),
        ("in_region", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("parts_count", ctypes.c_uint32),
        ("check_parts", ctypes.c_void_p),
    ]


class CConfig(ctypes.Structure):
    """kiln_config: the memory and the options of a session."""

    _fields_: ClassVar = [
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_size_t),
        ("pool", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("on_step", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("gpu", ctypes.c_int32),
        ("gpu_stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("state_bytes", ctypes.c_size_t),
        ("regions", ctypes.c_void_p),
    ]


class CSession(ctypes.Structure):
    """The first fields of kiln_session, up to the bucket that runs."""

    _fields_: ClassVar = [
        ("model", ctypes.c_void_p),
        ("variant", ctypes.POINTER(CVariant)),
        ("config", CConfig),
        ("frame", ctypes.c_void_p * 9),
        ("dims", ctypes.c_int64 * MAX_DIMS),
        ("bucket", ctypes.c_uint32),
    ]


class CPlanResult(ctypes.Structure):
    """kiln_plan_result: the bucket, steps and arena for given sizes; free dimensions before derived ones."""

    _fields_: ClassVar = [
        ("bucket", ctypes.c_uint32),
        ("steps", ctypes.c_uint32),
        ("arena_bytes", ctypes.c_size_t),
        ("dims", ctypes.c_int64 * MAX_DIMS),
    ]


@functools.cache  # a run asks for every tensor, and names of NumPy's types are slow
def element_type(dtype: np.dtype[np.generic]) -> DLDataType:
    """The DLDataType of a NumPy type. Raises KilnError for a type that has none, such as strings."""
    if dtype.name == "bfloat16":
        return DLDataType(BFLOAT16_CODE, 16, 1)
    if dtype.kind not in DTYPE_CODES or not dtype.isnative:
        raise KilnError(f"an array of dtype {dtype}: allowed are native bool, integer and float types")
    return DLDataType(DTYPE_CODES[dtype.kind], 8 * dtype.itemsize, 1)


def numpy_type(dtype: DLDataType) -> np.dtype[np.generic]:
    """The NumPy type of a DLDataType; bfloat16 needs the package ml_dtypes. Inverse of `element_type`."""
    if dtype.code == BFLOAT16_CODE:
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise KilnError(
                "a tensor of bfloat16, a type that NumPy has from the package ml-dtypes; install it with: "
                f"{sys.executable} -m pip install ml-dtypes"
            ) from None

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    kind = {code: kind for kind, code in DTYPE_CODES.items()}[dtype.code]
    result: np.dtype[Any] = np.dtype(bool) if kind == "b" else np.dtype(f"{kind}{dtype.bits // 8}")
    return result


_ON_CPU = DLDevice(CPU, 0)
_SHAPES = [ctypes.c_int64 * max(rank, 1) for rank in range(65)]  # by rank; NumPy has at most 64 axes


def tensor_of(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> DLTensor:
    """A DLTensor over the memory of a contiguous array, which must outlive it."""
    shape = _SHAPES[array.ndim](*array.shape)
    return DLTensor(address_of(array), _ON_CPU, array.ndim, element_type(array.dtype), shape, None, 0)


def address_of(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    """The address of an array's first element."""
    address: int = array.__array_interface__["data"][0]  # array.ctypes makes objects on the way
    return address
