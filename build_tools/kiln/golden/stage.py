"""golden: stage that makes golden vectors: inputs of several kinds, and the outputs of the reference."""

from __future__ import annotations

from kiln.config.boxes import BoxList
from kiln.config.interface import Interface
from kiln.config.padding import PaddingProofs
from kiln.config.records import read
from kiln.config.slice_records import GoldenConfig
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.stages.model import GoldenStage


def run(args: GoldenStage) -> None:
    """Write golden.json, one raw little-endian file a tensor, and padding.json where inputs are padded.

    All files are written, or none. Raises KilnError for a bucket whose padding changes an output.
    """
    from kiln.golden.inputs import check_preprocess
    from kiln.golden.vectors import make_vectors

    config = read(GoldenConfig, args.config)
    tolerance = read_json(args.tolerance).get("tolerance") if args.tolerance else None
    buckets = read(BoxList, args.buckets) if args.buckets else None
    proofs = read(PaddingProofs, args.padding).buckets if args.padding else {}
    interface = read(Interface, args.interface)
    try:
        check_preprocess(interface.inputs, config.preprocess)
        files, golden_file, padding = make_vectors(
            config, tolerance or {}, args.source, interface, buckets, proofs
        )
    except KilnError as error:
        text = str(error).replace(str(args.source), args.called or str(args.source))
        of_key = text.startswith(("golden.", "preprocess"))
        raise KilnError(f"model '{config.name}': {text}" if of_key else text) from error
    with atomic_dir(args.out) as folder:
        for path, content in files.items():
            atomic_write(folder / path, content)
        write_json(folder / "golden.json", golden_file.model_dump())
        if padding is not None:
            write_json(folder / "padding.json", padding)
