"""Weights of a run where they lie, for numpy and torch by DLPack."""
import ctypes
import sys
import threading
from ctypes import py_object
from typing import Any, List, Optional, Tuple

from ._native import LIBRARY, DLManagedTensorVersioned, Unshared, check, text

_CAPSULE = b'dltensor_versioned'
_CPU = 1  # kDLCPU
# Of our own: what other modules set as the types of ctypes.pythonapi's functions is theirs.
_new_capsule = ctypes.PYFUNCTYPE(py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(('PyCapsule_New', ctypes.pythonapi))
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, ctypes.c_char_p)(('PyCapsule_IsValid', ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, py_object, ctypes.c_char_p)(('PyCapsule_GetPointer', ctypes.pythonapi))

# Capsules that were made. They have no destructor: one of Python's cannot run while an exception is on its way, which is when a consumer
# that refuses a tensor drops its capsule (numpy and a GPU's).
_capsules: List[Any] = []
_lock = threading.RLock()


def give_back_dropped() -> None:
    """A capsule that nobody has taken, and nobody holds any more, has its tensor still: that is given back."""
    with _lock:
        at = 0
        while at < len(_capsules):
            if sys.getrefcount(_capsules[at]) > 2:  # the list's, and this call's
                at += 1
                continue
            capsule = _capsules.pop(at)
            if _is_capsule(capsule, _CAPSULE):  # a consumer gives it another name
                tensor = ctypes.cast(_pointer_of(capsule, _CAPSULE), ctypes.POINTER(DLManagedTensorVersioned))
                tensor.contents.deleter(tensor)


def capsule_of(tensor: Any) -> Any:
    """Of a DLManagedTensorVersioned, which it owns from now on."""
    try:
        capsule = _new_capsule(ctypes.cast(tensor, ctypes.c_void_p), _CAPSULE, None)
    except BaseException:
        tensor.contents.deleter(tensor)
        raise
    with _lock:
        _capsules.append(capsule)
    return capsule


def require_lending(device: Tuple[int, int], max_version: Optional[Tuple[int, int]], dl_device: Optional[Tuple[int, int]],
                    copy: Optional[bool]) -> None:
    """What a consumer asks of __dlpack__ is a read-only tensor in place."""
    if max_version is None or max_version[0] < 1:
        raise BufferError('weights are read-only, which DLPack can say from version 1.0 on: numpy 2.1, torch 2.9 or newer')
    if copy:
        raise BufferError('weights are lent in place; copy them afterwards')
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError('weights lie on device %s' % (device,))


class Tensor(Unshared):
    """Read-only weights of a run, in place. While it lives, or an array made of it, the run refuses to write weights (BorrowedError).

    `numpy.asarray(tensor)` (numpy 2.1 or newer, weights on the CPU) and `torch.from_dlpack(tensor)` share its memory. As a context
    manager it is given back at the end of the block; arrays made of it hold on to it on their own. On a GPU any stream may read them:
    the run waits for reads that are left behind before it writes.
    """

    def __init__(self, run: Any, handle: int, name: str) -> None:
        self._tensor: Any = None
        self._run, self._handle, self.name = run, handle, name
        version = ctypes.c_uint64()
        self._tensor = self._borrow(version)
        self.version: int = version.value

    def _borrow(self, version: Optional[ctypes.c_uint64] = None) -> Any:
        tensor = ctypes.POINTER(DLManagedTensorVersioned)()
        check(LIBRARY.mr_weights_borrow(self._handle, text(self.name.encode(), 'a name'), ctypes.byref(tensor),
                                        None if version is None else ctypes.byref(version)))
        return tensor

    def _inner(self) -> Any:
        if self._tensor is None:
            raise ValueError('%s was given back' % self.name)
        return self._tensor.contents.dl_tensor

    @property
    def shape(self) -> Tuple[int, ...]:
        inner = self._inner()
        return tuple(inner.shape[i] for i in range(inner.ndim))

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""
        inner = self._inner()
        return tuple(inner.strides[i] for i in range(inner.ndim))

    def tolist(self) -> List[Any]:
        """A copy, as nested lists; of weights on the CPU."""
        inner = self._inner()
        if inner.device_type != _CPU:
            raise BufferError('weights lie on device %s: torch.from_dlpack(tensor).tolist()' % (self.__dlpack_device__(),))
        data = ctypes.cast(inner.data, ctypes.POINTER(ctypes.c_float))

        def part(dim: int, at: int) -> Any:
            if dim == inner.ndim:
                return data[at]
            return [part(dim + 1, at + i * inner.strides[dim]) for i in range(inner.shape[dim])]

        return part(0, 0)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        import numpy  # who asks has it
        shared = numpy.from_dlpack(self)
        if dtype is None or numpy.dtype(dtype) == shared.dtype:
            return shared.copy() if copy else shared
        if copy is False:
            raise ValueError('%s is %s; as %s it is a copy' % (self.name, shared.dtype, numpy.dtype(dtype)))
        return shared.astype(dtype)

    def __dlpack_device__(self) -> Tuple[int, int]:
        inner = self._inner()
        return inner.device_type, inner.device_id

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None, dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        require_lending(self.__dlpack_device__(), max_version, dl_device, copy)
        return capsule_of(self._borrow())

    def release(self) -> None:
        """Gives it back. Arrays that were made of it are not affected."""
        tensor, self._tensor = self._tensor, None
        if tensor is not None:
            tensor.contents.deleter(tensor)
            give_back_dropped()

    def __enter__(self) -> 'Tensor':
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()
