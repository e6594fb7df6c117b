"""The options of `kiln quantise` that say how a model is rounded."""

from __future__ import annotations

import argparse

from kiln.command_line.number_types import finite, not_negative
from kiln.command_line.quantise import ACTIVATIONS, CHOICES, METHODS


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options to `command`."""
    command.add_argument("--method", choices=METHODS, default="minmax", help="ranges of activations")
    command.add_argument("--activations", choices=ACTIVATIONS, default="int8", help="type; default: int8")
    text = "bits of weights; 7: less exact, but faster on x86 without VNNI; default: 8"
    command.add_argument("--weight-bits", "--weight_bits", type=int, choices=(7, 8), default=8, help=text)
    text = "give the channels of an activation like ranges; default: auto, if it helps"
    command.add_argument("--equalise", choices=CHOICES, default="auto", help=text)
    text = "let biases make up for rounded weights; default: auto, if it helps"
    command.add_argument("--correct-bias", "--correct_bias", choices=CHOICES, default="auto", help=text)
    text = "round operands of Softmax and normalisations as well, for cores without floats"
    command.add_argument("--all-integer", "--all_integer", action="store_true", help=text)
    text = "keep nodes in float until the outputs have this signal-to-noise ratio"
    command.add_argument("--min-snr", "--min_snr", type=finite, metavar="DB", help=text)
    text = "keep nodes in float until accuracy drops by no more percentage points"
    command.add_argument("--max-drop", "--max_drop", type=not_negative, metavar="POINTS", help=text)
