"""A loaded model as a Python function: NumPy arrays or DLPack tensors in, NumPy arrays out.

    import kiln
    net = kiln.load("build/host/resnet")
    scores = net(image)

Nothing is copied: kernels read the caller's memory and write the returned arrays. An input is copied only if
it is not contiguous. The C library does all checks, and its texts are those of the exceptions.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from kiln.errors import KilnError, path_of
from kiln.runtime import structs
from kiln.runtime.arrays import (
    Tensor,
    aligned_bytes,
    as_array,
    by_name,
    contiguous,
    counted_part,
    of_shape,
    sizes_in_order,
    tensor_infos,
    tensors_over,
    with_given,
)
from kiln.runtime.bound_run import BoundRun
from kiln.runtime.library import BundleLibrary
from kiln.runtime.notebook import ports_text, report_frame, tensors_table
from kiln.runtime.records import RunPlan, SizeRange, StepTime
from kiln.runtime.run_tensors import RunTensors, TensorsByShapes, output_shapes, plan_of_run
from kiln.runtime.traffic import TrafficCounts, add_to_file


def load(
    bundle: str | os.PathLike[str],
    threads: int = 1,
    gpu: int = 0,
    variant: str | None = None,
    contents: bool = False,
) -> Network:
    """Load the bundle in the folder `bundle`, such as build/host/resnet.

    `threads` compute a run together: 0 means one for each processor. `gpu` is the number of the GPU for a
    bundle that runs on one. `variant` names the variant to run, instead of the best one for this processor.
    With `contents`, the network also counts the runs whose inputs are all zeros or all ones, for
    `write_traffic`. Raises KilnError if the folder holds no bundle that this machine can run.
    """
    folder = path_of(bundle, "load: bundle", "build/host/resnet")
    return Network(BundleLibrary(folder), threads, gpu, variant, contents)


class Network:
    """A model that is ready to run. Threads may share it: runs happen one after the other.

    `copy()` gives a second one that runs at the same time.
    """

    def __init__(
        self,
        library: BundleLibrary,
        threads: int = 1,
        gpu: int = 0,
        variant: str | None = None,
        contents: bool = False,
    ) -> None:
        if not (isinstance(threads, int) and 0 <= threads <= 64):
            raise KilnError(f"threads={threads!r}: allowed are 1 to 64, and 0 for one for each processor")
        if gpu != 0 and not library.model.gpu:
            raise KilnError(f"gpu={gpu}: {library.folder} runs on the processor, not on a GPU")
        if not (variant is None or (isinstance(variant, str) and "\0" not in variant)):
            raise KilnError(
                f"variant={variant!r}: the name of a variant is expected, or None for the best one"
            )
        self._library, self._c, self._model = library, library.c, library.model
        self._threads, self._gpu, self._variant = threads, gpu, variant
        self._lock = threading.Lock()
        self._session = ctypes.create_string_buffer(structs.SESSION_BYTES)
        self._contents = contents
        self._pool: Any = None
        self._params = (ctypes.c_void_p(), ctypes.c_size_t())
        self.name = library.name
        manifest = library.manifest
        self.inputs = tensor_infos(self._model.inputs, self._model.inputs_count, manifest["inputs"])
        self.outputs = tensor_infos(self._model.outputs, self._model.outputs_count, manifest["outputs"])
        self.dims = {
            dim.name.decode(): SizeRange(dim.min, dim.max, dim.multiple)
            for dim in self._model.dims[: self._model.dims_count]
        }
        self._names = [info.name for info in self.inputs]
        self._counts = self._model.derived_count > 0  # a run may count the elements of an output
        self._tensors = TensorsByShapes(library, [info.dtype for info in self.outputs])
        self._traffic = TrafficCounts(tuple(self.dims))
        buckets = self._model.buckets[: self._model.buckets_count]
        self._buckets = [bucket.name.decode() for bucket in buckets]
        self._arena = aligned_bytes(max((bucket.arena_bytes for bucket in buckets), default=0))
        self._state = aligned_bytes(self._model.state_bytes)
        self._open()

    def _open(self) -> None:
        library, config = self._library, structs.CConfig(gpu=self._gpu)
        config.arena, config.arena_bytes = self._arena.ctypes.data, self._arena.nbytes
        config.state, config.state_bytes = self._state.ctypes.data, self._state.nbytes
        if self._threads != 1:
            self._pool = (ctypes.c_uint64 * structs.POOL_WORDS)()
            library.check(self._c.kiln_pool_open(self._pool, self._threads), None)
            config.pool = ctypes.addressof(self._pool)
        if library.manifest["params"]["storage"] == "file":
            data, size = self._params
            path = library.folder / "params.bin"
            if not path.is_file():
                raise KilnError(f"{path}: no such file: this bundle keeps its parameters there")
            status = self._c.kiln_map_params(os.fsencode(path), ctypes.byref(data), ctypes.byref(size))
            library.check(status, None)
            config.params, config.params_bytes = data, size
        config.variant = None if self._variant is None else self._variant.encode()
        model = ctypes.byref(self._model)
        self._check(self._c.kiln_open(self._session, model, ctypes.byref(config)))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run once on inputs in the model's order or by name. Return the output, or a tuple of several."""
        outputs = self._run(self._arrays(inputs, named), None)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """Run once with inputs by the names of the source model. Return the outputs by name.

        `out` names arrays or DLPack tensors into which outputs are written; the others are new arrays. An
        output whose elements a run counts is written to the start of an array of its greatest size, which
        `plan` gives; the result is the part that the run has made.
        """
        outputs = self._run(self._arrays((), by_name(inputs, "run: inputs")), out)
        return {info.name: value for info, value in zip(self.outputs, outputs, strict=True)}

    def reset(self) -> None:
        """Begin a new sequence of runs: give the model's state its first values, as `load` does."""
        with self._lock:
            self._check(self._c.kiln_reset(self._session))

    def bind(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> BoundRun:
        """A run on fixed memory: each call reads the present content of `inputs` and writes the same outputs.

        All inputs must be contiguous, as a copy would not see their later content.
        """
        arrays = self._arrays((), by_name(inputs, "bind: inputs"))
        for info, array in zip(self.inputs, arrays, strict=True):
            if not np.shares_memory(array, as_array(inputs[info.name], info.dtype)) and array.size:
                raise KilnError(f"{self.name}: input '{info.name}' must be a contiguous array to be bound")
        planned = self._tensors.of(arrays)
        outputs = self._outputs(planned, out)
        tensors, results = tensors_over(arrays), tensors_over(outputs)
        named = {info.name: value for info, value in zip(self.outputs, outputs, strict=True)}

        def run() -> Sequence[tuple[int, ...]] | None:
            with self._lock:
                return self._call(arrays, tensors, results, planned.sizes)

        return BoundRun(arrays, named, run)

    @property
    def variant(self) -> str:
        """Name of the variant that runs: kernels for one kind of processor."""
        session = structs.CSession.from_buffer(self._session)
        name: bytes = session.variant.contents.name
        return name.decode()

    def plan(self, *shapes: Sequence[int], **dims: int) -> RunPlan:
        """Bucket, steps and memory of a run: for the shapes of all inputs, or for dimensions by name."""
        if shapes:
            if dims or len(shapes) != len(self.inputs):
                raise KilnError(
                    f"plan: {len(shapes)} shapes, allowed are {len(self.inputs)}, or dimensions by name"
                )
            pairs = zip(self.inputs, shapes, strict=True)
            empty = [of_shape(shape, info.dtype, info.name) for info, shape in pairs]
            result = plan_of_run(self._library, tensors_over(empty))
        else:
            result, detail = structs.CPlanResult(), structs.CDetail()
            c_sizes = (ctypes.c_int64 * structs.MAX_DIMS)(*sizes_in_order(dims, self.dims))
            status = self._c.kiln_plan_dims(
                ctypes.byref(self._model), c_sizes, ctypes.byref(result), ctypes.byref(detail)
            )
            self._library.check(status, detail)
        sizes_by_name = dict(zip(self.dims, result.dims, strict=False))
        bucket = self._buckets[result.bucket]
        return RunPlan(
            bucket, result.steps, result.arena_bytes, sizes_by_name, output_shapes(self._library, result)
        )

    def profile(self, *inputs: Any, runs: int = 20, **named: Any) -> list[StepTime]:
        """Time each step in `runs` runs, after one more run without timing; labels are operators."""
        if not (isinstance(runs, int) and runs >= 1):
            raise KilnError(f"profile: runs={runs!r}: at least 1 is required")
        arrays = self._arrays(inputs, named)
        outputs = self._outputs(self._tensors.of(arrays), None)
        tensors, results = tensors_over(arrays), tensors_over(outputs)
        times: list[list[int]] = []
        with self._lock:
            for _ in range(runs + 1):
                self._check(self._c.kiln_begin(self._session, tensors, results))
                steps = self._c.kiln_steps_left(self._session)
                run = [0] * steps
                while left := self._c.kiln_steps_left(self._session):
                    start = time.perf_counter_ns()
                    status = self._c.kiln_step(self._session)
                    run[steps - left] += time.perf_counter_ns() - start  # a step of a loop runs several times
                    self._check(status)
                times.append(run)
            bucket = structs.CSession.from_buffer(self._session).bucket
        return [
            StepTime(number, self._label(bucket, number), statistics.median(run[number] for run in times[1:]))
            for number in range(len(times[0]))
        ]

    def write_traffic(self, path: str | os.PathLike[str]) -> int:
        """Add the sizes of all runs since the last call to the traffic file `path`; return their number.

        `buckets: auto` chooses buckets from such files. If the network was loaded with `contents`, the file
        also says in how many runs each input was all zeros or ones, for `special_cases`. Raises KilnError for
        a model with neither, and for a file with other dimensions, which stays as it is.
        """
        if not self.dims and not self._contents:
            raise KilnError(
                f"{self.name}: no dimension is dynamic, so there is no traffic to record; "
                "load(…, contents=True) records what is in the inputs"
            )
        file = path_of(path, "write_traffic: path", "traffic.csv")
        with self._lock:
            add_to_file(file, self._traffic)
            runs, self._traffic = sum(self._traffic.rows.values()), TrafficCounts(tuple(self.dims))
        return runs

    def copy(self) -> Network:
        """A second network of the same model with an arena of its own, so that another thread may run it."""
        return Network(self._library, self._threads, self._gpu, self._variant, self._contents)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """The result of `copy`: two networks never share a session, which the first one to go would close."""
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the call of `load`: another process loads the bundle from its folder itself."""
        folder = str(self._library.folder)
        return load, (folder, self._threads, self._gpu, self._variant, self._contents)

    def close(self) -> None:
        """End the threads, and free the GPU's memory. The network cannot run afterwards."""
        with self._lock:
            self._c.kiln_close(self._session)
            if self._pool is not None:
                self._c.kiln_pool_close(self._pool)
                self._pool = None
            data, size = self._params
            if data:
                self._c.kiln_unmap_params(data, size)
                self._params = (ctypes.c_void_p(), ctypes.c_size_t())

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_params"):
            self.close()

    def __repr__(self) -> str:
        return f"<kiln.Network {self.name} ({ports_text(self.inputs)}) -> ({ports_text(self.outputs)})>"

    def _repr_html_(self) -> str:
        return tensors_table(self.inputs, self.outputs, self.dims) + report_frame(self._library.folder)

    def _check(self, status: int) -> None:
        if status:
            self._library.check(status, self._c.kiln_error(self._session).contents)

    def _run(self, arrays: list[Tensor], out: Mapping[str, Any] | None) -> list[Tensor]:
        planned = self._tensors.of(arrays)
        outputs = self._outputs(planned, out)
        results = planned.outputs if out is None else tensors_over(outputs)
        with self._lock:
            planned.point_to(arrays, outputs if out is None else ())
            shapes = self._call(arrays, planned.inputs, results, planned.sizes)
        return outputs if shapes is None else [*map(counted_part, outputs, shapes)]

    def _call(
        self, arrays: Sequence[Tensor], inputs: Any, outputs: Any, sizes: tuple[int, ...]
    ) -> tuple[tuple[int, ...], ...] | None:
        """Run once, with `_lock` held; return the outputs' shapes if the run may have counted them.

        `inputs`: over `arrays`. `sizes`: the run's free dimensions.
        """
        self._check(self._c.kiln_run(self._session, inputs, outputs))
        if sizes or self._contents:
            names = self._names if self._contents else []
            self._traffic.count(sizes, dict(zip(names, arrays, strict=False)))
        if not self._counts:
            return None
        return output_shapes(self._library, structs.CSession.from_buffer(self._session))

    def _arrays(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
        """Contiguous arrays over the inputs, in the model's order."""
        names = self._names
        if named or len(inputs) != len(names):
            unknown = [name for name in named if name not in names[len(inputs) :]]
            if unknown or len(inputs) + len(named) != len(names):
                fault = f"no free input '{unknown[0]}'" if unknown else f"{len(inputs) + len(named)} inputs"
                raise KilnError(f"{self.name}: {fault}; the inputs are {', '.join(names)}")
            inputs = [*inputs, *(named[name] for name in names[len(inputs) :])]
        return [
            contiguous(value, info.dtype, info.name) for value, info in zip(inputs, self.inputs, strict=True)
        ]

    def _outputs(self, planned: RunTensors, out: Mapping[str, Any] | None) -> list[Tensor]:
        """Arrays for the outputs: the arrays in `out`, and new ones."""
        outputs = planned.new_outputs()
        return outputs if out is None else with_given(outputs, out, self.outputs, self.name)

    def _label(self, bucket: int, step: int) -> str:
        function = getattr(self._c, f"{self.name}_step_label")
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_uint32, ctypes.c_uint32]
        text = function(bucket, step)
        return text.decode() if text else ""
