"""A second device that needs no GPU: `torch.device("far")`, whose tensors lie on the CPU and refuse to be mixed with the CPU's.

Knows: what a GPU refuses: operations on tensors of two devices, a view as a numpy array.
Does not know: anything of a GPU's speed, rounding, order of sums or memory.

Importing this module registers the device in the whole process, so only `ENVSCHED_FAR=1 pytest` does (`tests/test_devices.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

FAR = "far"
MIXED = ("aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::copy_", "aten::_to_copy")
"""Operations whose further tensors may lie on the CPU, as on a GPU: indices, and what is copied."""


class Far(torch.Tensor):
    """A tensor on the second device; its values lie in `near`."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        """Of the same shape, strides and type."""
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        far: Far = torch.Tensor._make_wrapper_subclass(cls, near.size(), device=f"{FAR}:0", requires_grad=near.requires_grad, **layout)
        far.near = near
        return far

    def __repr__(self) -> str:
        """Its values."""
        return f"Far({self.near})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Compute on the values."""
        return computed(func, args, kwargs or {})


def near(value: Any) -> Any:
    """The values of a tensor of the second device; anything else as it is."""
    return value.near if isinstance(value, Far) else value


def is_far(device: Any) -> bool:
    """Whether a device, or its name, is the second one."""
    return device is not None and torch.device(device).type == FAR


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation on the values, which must all be of one device; numbers may come from the CPU."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    far = {id(tensor.near): tensor for tensor in tensors if isinstance(tensor, Far)}
    others = [tensor for tensor in tensors if not isinstance(tensor, Far) and tensor.dim() > 0]
    if far and others and not (func.name() in MIXED and (isinstance(args[0], Far) or func.name() == "aten::copy_")):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func.name()} found {FAR} and cpu")
    stays = bool(far)
    if "device" in kwargs and kwargs["device"] is not None:
        stays, kwargs = is_far(kwargs["device"]), {**kwargs, "device": torch.device("cpu"), "pin_memory": None}
    found = func(*tree_map(near, args), **tree_map(near, kwargs))

    def there(value: Any) -> Any:
        if not stays or not isinstance(value, torch.Tensor):
            return value
        return far[id(value)] if id(value) in far else Far(value)

    return tree_map(there, found)


class Making(TorchFunctionMode):
    """What python asks of tensors before any operation is dispatched: new ones, lists as indices, plain values."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """The call, its new tensors first made on the CPU."""
        kwargs = kwargs or {}
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if isinstance(first, Far) and name == "tolist":
            return first.near.tolist()
        if isinstance(first, Far) and name == "new_tensor":
            return Far(first.near.new_tensor(*args[1:], **kwargs))
        if isinstance(first, Far) and name in ("__getitem__", "__setitem__"):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (first, tuple(torch.tensor(part) if isinstance(part, list | tuple | range) else part for part in at), *args[2:])
        if name != "to" and is_far(kwargs.get("device")):
            return Far(func(*map(near, args), **(kwargs | {"device": "cpu"})))
        return func(*args, **kwargs)


_setup_privateuseone_for_python_backend(FAR)
FALLBACK = torch.library.Library("_", "IMPL")
FALLBACK.fallback(lambda func, *args, **kwargs: computed(func, args, kwargs), "PrivateUse1")
Making().__enter__()
