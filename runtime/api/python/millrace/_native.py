"""millrace.h for ctypes: structs, prototypes, and statuses as exceptions."""
import ctypes
import math
import operator
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, List, Optional, TypeVar

from ._errors import BY_CODE, Error, InvalidArgument

_BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'libmillrace.so')
_SONAME = 'libmillrace.so.0.1'

LogCallback = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
ExchangeCallback = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
StallCallback = CFUNCTYPE(None, c_void_p, c_char_p)
EventCallback = CFUNCTYPE(c_void_p, c_void_p, c_void_p)


class Sized(ctypes.Structure):
    """A struct of millrace.h, which begins with its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        for name, value in fields.items():  # ctypes cuts integers to the field's width
            if isinstance(value, int) and getattr(self, name) != value:
                raise InvalidArgument('%s is %d, which millrace.h has no room for' % (name, value), 64)
        self.size = ctypes.sizeof(self)


class Mpi(Sized):
    _fields_ = [('size', c_size_t), ('comm', c_void_p), ('library', c_char_p)]


class RunOptions(Sized):
    _fields_ = [('size', c_size_t), ('config', c_char_p), ('rank', c_int32), ('world', c_int32), ('device', c_int32), ('use_data', c_int32),
                ('user', c_void_p), ('log', LogCallback), ('exchange', ExchangeCallback), ('on_stall', StallCallback), ('use_inference', c_int32),
                ('mpi', POINTER(Mpi))]


class InfoStruct(Sized):
    _fields_ = [('size', c_size_t), ('parameters', c_int64), ('step', c_int64), ('arena_bytes', c_int64), ('weight_version', c_uint64),
                ('vocab', c_int64), ('seq_len', c_int64), ('step_sequences', c_int64), ('eval_sequences', c_int64), ('rank', c_int32),
                ('world', c_int32), ('lent', c_int64), ('released_bytes', c_int64)]


class MemoryStruct(Sized):
    _fields_ = [('size', c_size_t), ('bytes', c_int64), ('host_bytes', c_int64), ('seconds', c_double)]


class SharedWeightsStruct(Sized):
    _fields_ = [('size', c_size_t), ('fd', c_int32), ('on_gpu', c_int32), ('bytes', c_int64), ('version', c_uint64), ('manifest', c_char_p)]


class Batch(Sized):
    _fields_ = [('size', c_size_t), ('tokens', POINTER(c_int32)), ('sequences', c_int64), ('weights', POINTER(c_float)),
                ('advantages', POINTER(c_float)), ('old_logprobs', POINTER(c_float)), ('reference_logprobs', POINTER(c_float))]


class StepStruct(Sized):
    _fields_ = [('size', c_size_t), ('step', c_int64), ('loss', c_double), ('grad_norm', c_double), ('lr', c_double), ('targets', c_int64),
                ('weight_version', c_uint64), ('applied', c_int32), ('clip_fraction', c_double), ('ratio', c_double), ('kl', c_double)]


class Request(Sized):
    _fields_ = [('size', c_size_t), ('prompt', POINTER(c_int32)), ('prompt_tokens', c_int64), ('max_tokens', c_int64), ('samples', c_int64),
                ('seed', c_uint64), ('temperature', c_float), ('top_p', c_float), ('min_p', c_float), ('top_k', c_int32),
                ('stop_tokens', POINTER(c_int32)), ('stop_count', c_int64), ('top_logprobs', c_int64)]


class AnswerStruct(Sized):
    _fields_ = [('size', c_size_t), ('request', c_int64), ('sample', c_int64), ('tokens', POINTER(c_int32)), ('logprobs', POINTER(c_float)),
                ('count', c_int64), ('finish', c_int32), ('weight_version', c_uint64), ('top', c_int64), ('top_tokens', POINTER(c_int32)),
                ('top_logprobs', POINTER(c_float))]


class EventStruct(Sized):
    _fields_ = [('size', c_size_t), ('request', c_int64), ('sample', c_int64), ('index', c_int64), ('token', c_int32), ('logprob', c_float),
                ('finish', c_int32), ('cancel', c_int32), ('weight_version', c_uint64), ('text', c_void_p), ('text_bytes', c_int64),
                ('top', c_int64), ('top_tokens', POINTER(c_int32)), ('top_logprobs', POINTER(c_float))]


class StreamOptions(Sized):
    _fields_ = [('size', c_size_t), ('user', c_void_p), ('on_event', EventCallback), ('tokenizer', c_void_p)]


class EvaluationStruct(Sized):
    _fields_ = [('size', c_size_t), ('loss', c_double), ('targets', c_int64)]


class DLTensor(ctypes.Structure):
    """Of DLPack 1.1, with DLDevice and DLDataType in place."""
    _fields_ = [('data', c_void_p), ('device_type', c_int32), ('device_id', c_int32), ('ndim', c_int32), ('code', ctypes.c_uint8),
                ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16), ('shape', POINTER(c_int64)), ('strides', POINTER(c_int64)),
                ('byte_offset', c_uint64)]


class DLManagedTensorVersioned(ctypes.Structure):
    pass


DLManagedTensorVersioned._fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('manager_ctx', c_void_p),
                                     ('deleter', CFUNCTYPE(None, POINTER(DLManagedTensorVersioned))), ('flags', c_uint64),
                                     ('dl_tensor', DLTensor)]


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_BESIDE if os.path.exists(_BESIDE) else _SONAME)
    status, run, text = c_void_p, c_void_p, c_char_p
    prototypes = {
        'mr_version': (text, []),
        'mr_config_schema': (text, []),
        'mr_status_new': (status, [c_int32, text]),
        'mr_status_code': (c_int32, [status]),
        'mr_status_message': (text, [status]),
        'mr_status_pointer': (text, [status]),
        'mr_status_free': (None, [status]),
        'mr_run_create': (status, [POINTER(RunOptions), POINTER(run)]),
        'mr_run_destroy': (status, [run]),
        'mr_run_info': (status, [run, POINTER(InfoStruct)]),
        'mr_run_config': (status, [run, POINTER(text)]),
        'mr_init': (status, [run]),
        'mr_load': (status, [run, text]),
        'mr_import': (status, [run, text]),
        'mr_save': (status, [run, text]),
        'mr_export': (status, [run, text]),
        'mr_rows_open': (status, [c_void_p, c_int64, POINTER(c_void_p)]),
        'mr_rows_next': (status, [c_void_p, c_int64, POINTER(Batch)]),
        'mr_rows_free': (None, [c_void_p]),
        'mr_step': (status, [run, POINTER(Batch), POINTER(StepStruct)]),
        'mr_evaluate': (status, [run, POINTER(Batch), POINTER(EvaluationStruct)]),
        'mr_score': (status, [run, POINTER(Batch), POINTER(c_double), c_int64]),
        'mr_score_likeliest': (status, [run, POINTER(Batch), POINTER(c_double), POINTER(c_int32), c_int64]),
        'mr_stream': (status, [run, POINTER(POINTER(Request)), c_int64, POINTER(StreamOptions)]),
        'mr_tokenizer_open': (status, [text, POINTER(c_void_p)]),
        'mr_tokenizer_free': (None, [c_void_p]),
        'mr_tokenizer_encode': (status, [c_void_p, text, c_int64, c_int32, POINTER(c_int32), c_int64, POINTER(c_int64)]),
        'mr_tokenizer_decode': (status, [c_void_p, POINTER(c_int32), c_int64, c_int32, c_void_p, c_int64, POINTER(c_int64)]),
        'mr_tokenizer_find': (status, [c_void_p, text, POINTER(c_int32)]),
        'mr_generate': (status, [run, POINTER(POINTER(Request)), c_int64, POINTER(c_void_p)]),
        'mr_answers_count': (c_int64, [c_void_p]),
        'mr_answers_get': (status, [c_void_p, c_int64, POINTER(AnswerStruct)]),
        'mr_answers_free': (None, [c_void_p]),
        'mr_release': (status, [run, c_int32, POINTER(MemoryStruct)]),
        'mr_acquire': (status, [run, POINTER(MemoryStruct)]),
        'mr_weights_count': (status, [run, POINTER(c_int64)]),
        'mr_weights_name': (status, [run, c_int64, POINTER(text)]),
        'mr_weights_export': (status, [run, POINTER(SharedWeightsStruct)]),
        'mr_weights_borrow': (status, [run, text, POINTER(POINTER(DLManagedTensorVersioned)), POINTER(c_uint64)]),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()
VERSION: str = LIBRARY.mr_version().decode()
_Owned = TypeVar('_Owned', bound='Owner')


class Unshared:
    """What one object alone gives back: a copy would do so again."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError('a %s cannot be copied or pickled: one object has it' % type(self).__name__)


class Owner(Unshared):
    """Of a handle of the library's, which `with` gives back, or the last reference."""
    _held: Optional[int] = None  # also of one whose arguments were refused

    @property
    def handle(self) -> int:
        if self._held is None:
            raise InvalidArgument('the %s was closed' % type(self).__name__, 64)
        return self._held

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Owned) -> _Owned:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if LIBRARY is not None:  # at the interpreter's end modules are gone
            self.close()


def check(status: Any) -> None:
    """Raises what a status says, and frees it."""
    if not status:
        return
    code = LIBRARY.mr_status_code(status)
    message = LIBRARY.mr_status_message(status).decode('utf-8', 'replace')
    pointer = LIBRARY.mr_status_pointer(status).decode('utf-8', 'replace')
    LIBRARY.mr_status_free(status)
    raise BY_CODE.get(code, Error)(message, code, pointer)


def text(of: bytes, what: str) -> bytes:
    """As C reads it: to the first zero byte, of which there is none."""
    if 0 in of:
        raise InvalidArgument('%s holds a zero byte' % what, 64)
    return of


def checked_integers(values: Any, what: str) -> List[int]:
    """Python's, numpy's and torch's; nothing is rounded or read from a text."""
    listed = []
    for value in values:
        try:
            listed.append(operator.index(value))
        except TypeError:
            raise InvalidArgument('%s %r; 32-bit integers are needed' % (what, value), 64) from None
        if not -2**31 <= listed[-1] < 2**31:
            raise InvalidArgument('%s %r; 32-bit integers are needed' % (what, value), 64)
    return listed


def integers(values: Any, what: str) -> 'ctypes.Array[ctypes.c_int32]':
    listed = checked_integers(values, what + ' holds')
    return (ctypes.c_int32 * len(listed))(*listed)


def copied(values: Any, letter: str, shape: List[int]) -> memoryview:
    """Of an array of C's with 4-byte elements: a memoryview of that shape, on memory of its own."""
    return memoryview(bytearray(ctypes.string_at(values, 4 * math.prod(shape)))).cast(letter, shape)


def config_schema() -> str:
    """JSON Schema (draft 7) of the configuration."""
    return LIBRARY.mr_config_schema().decode()
