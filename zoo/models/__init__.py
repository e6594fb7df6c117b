"""The models. Importing this package imports PyTorch and fills the catalogue."""

import zoo.prepare  # noqa: F401  before timm and torchvision
from zoo.models import (  # noqa: F401
    audible,
    classifiers,
    decoders,
    detection,
    diffusers_parts,
    diffusion,
    encoders,
    graphs,
    heads,
    images,
    joined,
    language,
    pipelines,
    plain,
    recent,
    segmentation,
    series,
    sound,
    speech,
    steps,
    text,
    vision,
)
