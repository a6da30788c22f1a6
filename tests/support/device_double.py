"""A stand-in for a GPU: tensors that live on a device of their own and are computed on the CPU.

They refuse to meet tensors of the CPU where CUDA's would, and nothing moves unless it is asked to.
`Double` notes what a GPU makes expensive, synchronizations and copies, and can run out of memory
at any allocation. It works in every thread, because the device's kernels are registered with torch.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("standin")
torch.standin.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore
DEVICE = torch.device("standin:0")
_aten = torch.ops.aten
_ROOT = str(Path(__file__).resolve().parents[2])
_OURS = (f"{_ROOT}/speed_ops/", f"{_ROOT}/nodes/")
"""Not all below the root: an environment with torch in it may be there."""

_COPIES = {_aten.copy_.default, _aten._copy_from.default}
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
"""Index tensors may be on the CPU."""
_LOOKS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten._unique2.default,
}
"""What makes the host wait for a GPU. Solvers that check their result are counted apart."""
_CHECKS = {_aten._linalg_check_errors.default}


class Double:
    """What the device did since it was made, and when it is to run out of memory."""

    def __init__(self) -> None:
        self.looks: Counter[str] = Counter()
        """Place in our code -> synchronizations: numbers read, copies to the host, sizes that
        depend on content.
        """
        self.checks = 0
        """Solvers that looked whether they succeeded."""
        self.to_host: list[tuple[int, ...]] = []
        """Shapes of the tensors that were copied to the host."""
        self.sites: list[str] = []
        """Place in our code of every allocation, in order."""
        self.bytes = self.peak = 0
        self.fails_at: int | None = None
        """The number of the allocation that finds no memory."""
        self.failed = False

    def allocate(self, inner: torch.Tensor) -> None:
        if not inner.numel():
            return  # an allocator always has nothing
        if self.fails_at is not None and len(self.sites) >= self.fails_at and not self.failed:
            self.failed = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.sites.append(_place())


_current = Double()


@contextmanager
def watching_the_device() -> Iterator[Double]:
    """Everything inside is noted."""
    global _current
    before, _current = _current, Double()
    try:
        yield _current
    finally:
        _current = before


def _place() -> str:
    """File and line of ours, or of ComfyUI's, that is running."""
    frame: Any = sys._getframe(2)
    outermost = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            return f"{name.removeprefix(_ROOT + '/')}:{frame.f_lineno}"
        frame = frame.f_back
    return outermost or "elsewhere"


class DeviceTensor(torch.Tensor):
    """A tensor of the device, over one of the CPU."""

    _inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        new: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        new._inner = inner
        return new

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        _current.looks[_place()] += 1
        return self._inner.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert standin:0 device type tensor to numpy.")

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self._inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, torch.Tensor) and kind not in _PLAIN for kind in types):
            return NotImplemented  # a quantized tensor over one of these knows what to do
        return _run(func, args, kwargs or {})


_PLAIN = {torch.Tensor, torch.nn.Parameter, DeviceTensor}


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
    here = [item for item in tensors if isinstance(item, DeviceTensor)]
    _refuse_mixture(func, args, [item for item in tensors if not isinstance(item, DeviceTensor)])
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != DEVICE.type:
        raise RuntimeError("Expected a 'standin' device type for generator but found 'cpu'")
    device = kwargs.get("device")
    stays = torch.device(device).type == DEVICE.type if device is not None else bool(here)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    _note(func, args, here, stays)
    plain_args, plain_kwargs = tree_map(_bare, args), tree_map(_bare, kwargs)
    out = func(*plain_args, **plain_kwargs)
    if func in _COPIES or func._schema.name.endswith("_"):
        return args[0]
    if kwargs.get("out") is not None:
        assert kwargs["out"].shape == plain_kwargs["out"].shape, f"{func} resized what it was given"
        return kwargs["out"]
    if not stays:
        # The inner tensor must not become visible as one of the CPU that shares its memory.
        same = [item._inner for item in here]
        return tree_map(lambda item: item.clone() if any(item is s for s in same) else item, out)
    is_view = any(r.alias_info is not None for r in func._schema.returns)

    def wrap(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or isinstance(item, DeviceTensor):
            return item
        return DeviceTensor(item) if is_view else _new(item)

    return tree_map(wrap, out)


def _bare(item: Any) -> Any:
    return item._inner if isinstance(item, DeviceTensor) else item


def _new(inner: torch.Tensor) -> DeviceTensor:
    """A tensor in memory of its own."""
    double, size = _current, inner.untyped_storage().nbytes()
    double.allocate(inner)
    double.bytes += size
    double.peak = max(double.peak, double.bytes)

    def free() -> None:
        double.bytes -= size

    # Views keep the storage alive, so the storage it is that counts.
    weakref.finalize(inner.untyped_storage(), free)
    return DeviceTensor(inner)


def _refuse_mixture(func: Any, args: Any, others: list[torch.Tensor]) -> None:
    """Raises as CUDA does for tensors on two devices."""
    if not others or func in _COPIES:
        return
    first = args[0] if args else None
    on_device = isinstance(first, DeviceTensor)
    if func in _INDEXING and on_device:
        value = args[2] if len(args) > 2 else None
        wrong = isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor)
        if not wrong or value.dim() == 0:
            return
    elif torch.Tag.pointwise in func.tags and all(item.dim() == 0 for item in others):
        in_place = func._schema.name.endswith("_")
        chooses = func is _aten.where.self and first in others
        if (on_device or not in_place) and not chooses:
            return
    shapes = [tuple(item.shape) for item in others]
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices,"
        f" standin:0 and cpu! ({func}: {shapes} on the CPU)"
    )


def _note(func: Any, args: Any, here: list[DeviceTensor], stays: bool) -> None:
    double = _current
    if func in _CHECKS:
        double.checks += 1
    if func in _LOOKS:
        double.looks[_place()] += 1
    elif func in _INDEXING:
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        if any(isinstance(mask, DeviceTensor) for mask in masks):
            double.looks[_place()] += 1
    elif func is _aten.copy_.default:
        source = args[1]
        if isinstance(source, DeviceTensor) and not isinstance(args[0], DeviceTensor):
            double.looks[_place()] += 1
            double.to_host.append(tuple(source.shape))
    elif here and not stays and not func.overloadpacket.__name__.endswith("_like"):
        double.looks[_place()] += 1
        double.to_host += [tuple(item.shape) for item in here]


def _kernel(name: str) -> Any:
    return torch.library.impl(f"aten::{name}", "PrivateUse1")


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("dtype", "layout") if options.get(key) is not None}


@_kernel("empty.memory_format")
def _empty(size: Any, **options: Any) -> DeviceTensor:
    return _new(torch.empty(size, **_without(options)))


@_kernel("empty_strided")
def _empty_strided(size: Any, stride: Any, **options: Any) -> DeviceTensor:
    return _new(torch.empty_strided(size, stride, **_without(options)))


def _made_by(name: str) -> None:
    """A function that would make an empty tensor and resize it."""
    operator, _, overload = name.partition(".")
    make = getattr(getattr(_aten, operator), overload or "default")

    @_kernel(name)
    def kernel(*args: Any, **options: Any) -> DeviceTensor:
        return _new(make(*args, **_without(options)))


for _name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace"):
    _made_by(_name)


@_kernel("_copy_from")
def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """What `torch.tensor(..., device=...)` ends in."""
    target._inner.copy_(_bare(source))
    return target
