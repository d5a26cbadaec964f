"""Weights of a run in another process of the host: on the same GPU, or in host memory, under Hugging Face's names.

    # The process that trains                            # Another one
    with run.export_weights() as exported:               with millrace.weights.receive(socket) as weights:
        millrace.weights.send(socket, exported)              model.load_state_dict({n: torch.from_dlpack(weights[n]) for n in weights})

`socket` is a Unix one, over which the memory's descriptor goes. The weights are of one version and never change; the run trains on, and
exports again. The memory goes when both have closed it and no tensor made of it is left.
"""
import ctypes
import json
import math
import mmap
import os
import socket as sockets
import struct
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from ._native import DLManagedTensorVersioned, DLTensor
from ._tensor import capsule_of, give_back_dropped, require_lending

__all__ = ['ExportedWeights', 'SharedTensor', 'SharedWeights', 'receive', 'send']

_CPU, _CUDA = 1, 2  # kDLCPU, kDLCUDA
_FLOAT, _READ_ONLY = 2, 1
_LENGTH = struct.Struct('<Q')
_MOST = 1 << 32  # of a manifest


class ExportedWeights:
    """A memory with weights, as Run.export_weights() gives it: a descriptor and what the memory holds."""

    def __init__(self, fd: int, manifest: str) -> None:
        self._fd, self.manifest = fd, manifest
        self.version: int = json.loads(manifest)['version']

    def fileno(self) -> int:
        if self._fd < 0:
            raise ValueError('the exported weights were closed')
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> 'ExportedWeights':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def send(connection: sockets.socket, exported: ExportedWeights) -> None:
    """To a process that receives; over a Unix socket of streams."""
    manifest = exported.manifest.encode()
    sockets.send_fds(connection, [_LENGTH.pack(len(manifest))], [exported.fileno()])
    connection.sendall(manifest)


def receive(connection: sockets.socket) -> 'SharedWeights':
    """What another process has sent. EOFError: it has gone."""
    head, fds, _, _ = sockets.recv_fds(connection, _LENGTH.size, 1)
    try:
        head += _exactly(connection, _LENGTH.size - len(head))
        length, = _LENGTH.unpack(head)
        if len(fds) != 1 or length > _MOST:
            raise ValueError('what came over the socket are no weights')
        return SharedWeights(fds[0], _exactly(connection, length).decode())
    finally:
        for fd in fds:
            os.close(fd)


def _exactly(connection: sockets.socket, count: int) -> bytes:
    parts = []
    while count > 0:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError('the other process has closed the socket')
        parts.append(part)
        count -= len(part)
    return b''.join(parts)


class _HostMemory:
    """A mapping of one's own: pages are the other process's until somebody here writes them."""
    device = (_CPU, 0)

    def __init__(self, fd: int, size: int) -> None:
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


class _Location(ctypes.Structure):
    _fields_ = [('type', ctypes.c_int), ('id', ctypes.c_int)]


class _Access(ctypes.Structure):
    _fields_ = [('location', _Location), ('flags', ctypes.c_int)]


class _GpuMemory:
    """Memory of a GPU that another process has made, mapped to be read."""
    _driver: Any = None

    def __init__(self, fd: int, size: int, gpu: str) -> None:
        self._size, self._handle, self._mapped = size, ctypes.c_uint64(), False
        self.address, self._at = 0, ctypes.c_uint64()
        self._call('cuInit', ctypes.c_uint(0))
        self.device = (_CUDA, self._ordinal_of(gpu))
        # Only one who has the GPU's context can map its memory; it is the one that torch has, too.
        context, before, number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._call('cuDeviceGet', ctypes.byref(number), ctypes.c_int(self.device[1]))
        self._call('cuCtxGetCurrent', ctypes.byref(before))
        self._call('cuDevicePrimaryCtxRetain', ctypes.byref(context), number)
        self._call('cuCtxSetCurrent', context)
        try:
            self._map(fd)
        finally:
            self._call('cuCtxSetCurrent', before)

    def _map(self, fd: int) -> None:
        size = ctypes.c_size_t(self._size)
        self._call('cuMemImportFromShareableHandle', ctypes.byref(self._handle), ctypes.c_void_p(fd), ctypes.c_int(1))
        self._call('cuMemAddressReserve', ctypes.byref(self._at), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0))
        self._call('cuMemMap', self._at, size, ctypes.c_size_t(0), self._handle, ctypes.c_ulonglong(0))
        self._mapped = True
        access = _Access(_Location(1, self.device[1]), 1)  # of the device, to read
        self._call('cuMemSetAccess', self._at, size, ctypes.byref(access), ctypes.c_size_t(1))
        self.address = self._at.value

    def _call(self, name: str, *arguments: Any) -> None:
        if _GpuMemory._driver is None:
            _GpuMemory._driver = ctypes.CDLL('libcuda.so.1')
        code = getattr(_GpuMemory._driver, name)(*arguments)
        if code != 0:
            raise OSError('weights on a GPU: %s failed with CUDA error %d' % (name, code))

    def _ordinal_of(self, gpu: str) -> int:
        count, number, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._call('cuDeviceGetCount', ctypes.byref(count))
        for ordinal in range(count.value):
            self._call('cuDeviceGet', ctypes.byref(number), ctypes.c_int(ordinal))
            self._call('cuDeviceGetUuid', ctypes.byref(uuid), number)
            if bytes(uuid).hex() == gpu.replace('GPU-', '').replace('-', ''):
                return ordinal
        raise OSError('the weights lie on %s, which is none of the %d GPUs that this process sees' % (gpu, count.value))

    def __del__(self) -> None:
        if _GpuMemory._driver is None:
            return
        driver, size = _GpuMemory._driver, ctypes.c_size_t(self._size)
        if self._mapped:
            driver.cuMemUnmap(self._at, size)
        if self._at.value:
            driver.cuMemAddressFree(self._at, size)
        if self._handle.value:
            driver.cuMemRelease(self._handle)


# Tensors that consumers hold, by the address of what describes them: it, and the memory.
_lent: Dict[int, Tuple[Any, Any]] = {}


def _forget(tensor: Any, lent: Dict[int, Tuple[Any, Any]] = _lent, address_of: Any = ctypes.addressof) -> None:
    lent.pop(address_of(tensor.contents), None)


_forget_callback = type(DLManagedTensorVersioned().deleter)(_forget)


class SharedTensor:
    """A tensor of SharedWeights, to be read: `torch.from_dlpack`, and in host memory `numpy.from_dlpack`, share its memory."""

    def __init__(self, memory: Any, name: str, shape: Tuple[int, ...], offset: int) -> None:
        self._memory, self._offset = memory, offset
        self.name, self.shape = name, shape

    @property
    def nbytes(self) -> int:
        count = 4
        for size in self.shape:
            count *= size
        return count

    def tobytes(self) -> bytes:
        """A copy; of weights in host memory."""
        if self._memory.device[0] != _CPU:
            raise BufferError('%s lies on a GPU: torch.from_dlpack' % self.name)
        return ctypes.string_at(self._memory.address + self._offset, self.nbytes)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._memory.device

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None, dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        require_lending(self._memory.device, max_version, dl_device, copy)
        dims, strides, step = len(self.shape), [], 1
        for size in reversed(self.shape):
            strides.insert(0, step)
            step *= size
        numbers = ctypes.c_int64 * max(dims, 1)
        shape, steps = numbers(*self.shape), numbers(*strides)
        inner = DLTensor(self._memory.address + self._offset, *self._memory.device, dims, _FLOAT, 32, 1, shape, steps, 0)
        tensor = DLManagedTensorVersioned(1, 1, None, _forget_callback, _READ_ONLY, inner)
        _lent[ctypes.addressof(tensor)] = (tensor, (self._memory, shape, steps))
        give_back_dropped()
        return capsule_of(ctypes.pointer(tensor))


class SharedWeights(Mapping[str, SharedTensor]):
    """Weights that another process has exported: {name: SharedTensor}. The descriptor stays the caller's."""

    def __init__(self, fd: int, manifest: str) -> None:
        told = json.loads(manifest)
        if told.get('millrace_weights') != 1:
            raise ValueError('weights of another version of Millrace')
        self.version: int = told['version']
        size, gpu = told['bytes'], told.get('gpu')
        self._tensors = {name: (tuple(told_of['shape']), told_of['offset']) for name, told_of in told['tensors'].items()}
        for name, (shape, offset) in self._tensors.items():  # beyond the mapping lies memory of this process
            if min(shape, default=0) < 0 or not 0 <= offset <= size - 4 * math.prod(shape):
                raise ValueError('%s lies outside the %d bytes of the weights' % (name, size))
        self._memory: Any = _HostMemory(fd, size) if gpu is None else _GpuMemory(fd, size, gpu)

    def __getitem__(self, name: str) -> SharedTensor:
        shape, offset = self._tensors[name]
        if self._memory is None:
            raise ValueError('the weights were closed')
        return SharedTensor(self._memory, name, shape, offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Gives the memory back, once no tensor made of it is left."""
        self._memory = None
        give_back_dropped()

    def __enter__(self) -> 'SharedWeights':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
