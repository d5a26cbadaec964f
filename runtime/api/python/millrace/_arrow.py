"""Batches out of Arrow's streams."""
import ctypes
import operator
from typing import Any, Dict, Iterator, Optional

from . import _native as native
from ._errors import InvalidArgument
from ._native import LIBRARY, Owner, check

_VALUES = ('weights', 'advantages', 'old_logprobs', 'reference_logprobs')
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(('PyCapsule_GetPointer', ctypes.pythonapi))


def _int64(value: Any, what: str) -> int:
    """ctypes cuts integers to the parameter's width."""
    try:
        integer = operator.index(value)
    except TypeError:
        integer = 2**63
    if not -2**63 <= integer < 2**63:
        raise InvalidArgument('%s is %r; a 64-bit integer is needed' % (what, value), 64)
    return integer


class Rows(Owner):
    """Rows of whatever has __arrow_c_stream__: a table or reader of pyarrow, a frame of polars, a relation of duckdb.

        for batch in millrace.Rows(table, seq_len + 1).batches(run.info.step_sequences):
            run.step(**batch)

    Column `tokens` has lists of `row_tokens` integers; `weights`, `advantages`, `old_logprobs` and `reference_logprobs`, those that there are,
    lists of one number less. Other columns are not looked at. DataError: columns of other types, and later nulls and lists of other lengths.
    The source is read as rows are asked for. A context manager; close() ends it."""

    def __init__(self, source: Any, row_tokens: int) -> None:
        self._row_tokens = _int64(row_tokens, 'row_tokens')
        if not hasattr(source, '__arrow_c_stream__'):
            raise InvalidArgument('%s has no __arrow_c_stream__, which is how Arrow\'s tables are read' % type(source).__name__, 64)
        capsule, handle = source.__arrow_c_stream__(), ctypes.c_void_p()
        check(LIBRARY.mr_rows_open(_pointer_of(capsule, b'arrow_array_stream'), self._row_tokens, ctypes.byref(handle)))
        self._held = handle.value

    def next(self, sequences: int) -> Optional[Dict[str, memoryview]]:
        """Arguments of Run.step: `tokens`, [rows, row_tokens] of int32, and a float32 [rows, row_tokens - 1] for each of the other columns that there
        are. Fewer rows where the source ends, then None."""
        batch = native.Batch()
        check(LIBRARY.mr_rows_next(self.handle, _int64(sequences, 'sequences'), ctypes.byref(batch)))
        if batch.sequences == 0:
            return None
        found = {'tokens': native.copied(batch.tokens, 'i', [batch.sequences, self._row_tokens])}
        for name in _VALUES:
            if getattr(batch, name):
                found[name] = native.copied(getattr(batch, name), 'f', [batch.sequences, self._row_tokens - 1])
        return found

    def batches(self, sequences: int, *, drop_last: bool = False) -> Iterator[Dict[str, memoryview]]:
        """All that is left, `sequences` rows at a time; the last batch may have fewer, unless those are dropped."""
        while True:
            batch = self.next(sequences)
            if batch is None or (drop_last and batch['tokens'].shape[0] < sequences):
                return
            yield batch

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            LIBRARY.mr_rows_free(held)
