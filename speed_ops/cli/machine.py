"""How a command reads text and computes on this machine: the device, the threads, the cache."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from typing import TYPE_CHECKING

from ..errors import SettingsError, UsageError, suggestion

if TYPE_CHECKING:
    from ..checkpoints.text_setup import TextSetup

DEVICES = ("auto", "cpu", "cuda", "xpu")
_NO_DOUBLE_PRECISION = "SPEED needs double precision, which {} lacks. Use --device cpu."


def text_setup_from(
    args: Namespace, clip_skip: int | None = None, *, here: bool = True
) -> TextSetup:
    """How to read text, on a machine set up as the arguments say.

    Args:
        args: The flags of `add_text_setup`.
        clip_skip: A recipe's, used where the arguments give none.
        here: Whether this machine is the one that reads it.
    """
    if args.clip_skip == 0:
        raise UsageError("Invalid --clip-skip 0. Use 1 for the last layer, 2 for the one before.")
    device = _machine_from(args) if here else _device_from(args).replace("auto", "cpu")
    from ..checkpoints.text_setup import TextSetup
    from ..encoders.cache import EmbeddingCache

    skip = clip_skip if args.clip_skip is None else -abs(args.clip_skip)
    cache = None if args.no_cache else EmbeddingCache()
    return TextSetup(
        skip,
        args.tokenizer,
        tuple(args.text_encoder),
        tuple(args.embedding),
        cache,
        device=device,
    )


def _machine_from(args: Namespace) -> str:
    """Sets the number of threads; returns the device, refused where it is not there or cannot do
    the work.
    """
    cores = os.cpu_count() or 1
    if args.threads is not None and not 1 <= args.threads <= cores:
        raise UsageError(
            f"Invalid --threads {args.threads}. Use 1 to {cores}, the cores of this machine."
        )
    device = _device_from(args)
    import torch

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    from ..devices import best_device, has_double_precision

    if device == "auto":
        return best_device()
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return device
    backend, number = getattr(torch, kind, None), int(index or 0)
    count = backend.device_count() if backend is not None else 0
    if number >= count:
        title = kind.upper()
        devices = (
            f"only {count} {title} device{'s' * (count > 1)}" if count else f"no {title} device"
        )
        raise SettingsError(
            f"--device is {device}, but torch finds {devices} here. Use --device cpu."
        )
    if not has_double_precision(device):
        raise SettingsError(_NO_DOUBLE_PRECISION.format(device))
    return device


def _device_from(args: Namespace) -> str:
    """The requested device, whether or not this machine has it."""
    if args.device == "mps":
        raise UsageError(_NO_DOUBLE_PRECISION.format("mps"))
    if not re.fullmatch(r"auto|cpu|(cuda|xpu)(:\d{1,3})?", args.device):
        near = suggestion(args.device, DEVICES)
        raise UsageError(
            f"There is no device {args.device!r}{near}. Use cpu, cuda, cuda:N, xpu or auto."
        )
    return str(args.device)
