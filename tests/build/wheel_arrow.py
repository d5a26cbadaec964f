"""Batches out of Arrow's streams, which a producer in ctypes gives as pyarrow does."""
import array
import ctypes
import weakref
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p

import millrace
from wheel_case import CONFIG, WheelCase, rows

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(('PyCapsule_New', ctypes.pythonapi))
_release = CFUNCTYPE(None, c_void_p)


class Schema(ctypes.Structure):
    pass


Schema._fields_ = [('format', c_char_p), ('name', c_char_p), ('metadata', c_char_p), ('flags', c_int64), ('n_children', c_int64),
                   ('children', POINTER(POINTER(Schema))), ('dictionary', c_void_p), ('release', c_void_p), ('private_data', c_void_p)]


class Array(ctypes.Structure):
    pass


Array._fields_ = [('length', c_int64), ('null_count', c_int64), ('offset', c_int64), ('n_buffers', c_int64), ('n_children', c_int64),
                  ('buffers', POINTER(c_void_p)), ('children', POINTER(POINTER(Array))), ('dictionary', c_void_p), ('release', c_void_p),
                  ('private_data', c_void_p)]


class Stream(ctypes.Structure):
    _fields_ = [('get_schema', c_void_p), ('get_next', c_void_p), ('get_last_error', c_void_p), ('release', c_void_p), ('private_data', c_void_p)]


class Table:
    """Columns {name: (Arrow's letter, rows)}, `each` rows in a record batch. All lives as long as the table; what is not released is counted."""

    def __init__(self, columns, each):
        self.columns, self.each, self.first, self.live, self._kept = columns, each, 0, 0, []
        self._functions = [
            CFUNCTYPE(c_int, c_void_p, POINTER(Schema))(self._schema),
            CFUNCTYPE(c_int, c_void_p, POINTER(Array))(self._next),
            CFUNCTYPE(c_void_p, c_void_p)(lambda _: None)
        ]
        self._releases = {kind: _release(self._releaser(weakref.ref(self), kind)) for kind in (Schema, Array, Stream)}

    @staticmethod
    def _releaser(table, kind):

        def release(at):
            kind.from_address(at).release = None
            table().live -= 1

        return release

    def __arrow_c_stream__(self, requested_schema=None):
        self.live += 1
        stream = Stream(*(ctypes.cast(function, c_void_p) for function in self._functions), self._release_of(Stream), None)
        self._kept.append(stream)
        return _new_capsule(ctypes.addressof(stream), b'arrow_array_stream', None)

    def _release_of(self, kind):
        return ctypes.cast(self._releases[kind], c_void_p)

    def _pointers(self, kind, of):
        self._kept += of
        pointers = (POINTER(kind) * len(of))(*map(ctypes.pointer, of))
        self._kept.append(pointers)
        return ctypes.cast(pointers, POINTER(POINTER(kind)))

    def _buffers(self, *buffers):
        addresses = (c_void_p * len(buffers))(*(None if one is None else one.buffer_info()[0] for one in buffers))
        self._kept += [*buffers, addresses]
        return ctypes.cast(addresses, POINTER(c_void_p))

    def _schema(self, _, out):
        lists = []
        for name, (letter, _) in self.columns.items():
            value = self._pointers(Schema, [Schema(format=letter.encode(), name=b'item', release=self._release_of(Schema))])
            lists.append(Schema(format=b'+L', name=name.encode(), n_children=1, children=value, release=self._release_of(Schema)))
        out[0] = Schema(format=b'+s', n_children=len(lists), children=self._pointers(Schema, lists), release=self._release_of(Schema))
        self.live += 1
        return 0

    def _next(self, _, out):
        out[0] = Array()
        some = {name: (letter, of[self.first:self.first + self.each]) for name, (letter, of) in self.columns.items()}
        count = len(next(iter(some.values()))[1])
        if count == 0:
            return 0
        lists = []
        for letter, of in some.values():
            flat = array.array({'l': 'q', 'g': 'd'}.get(letter, letter), sum(of, []))
            offsets = array.array('q', [sum(map(len, of[:i])) for i in range(count + 1)])
            value = Array(length=len(flat), n_buffers=2, buffers=self._buffers(None, flat), release=self._release_of(Array))
            lists.append(
                Array(length=count, n_buffers=2, buffers=self._buffers(None, offsets), n_children=1, children=self._pointers(Array, [value]),
                      release=self._release_of(Array)))
        out[0] = Array(length=count, n_buffers=1, buffers=self._buffers(None), n_children=len(lists), children=self._pointers(Array, lists),
                       release=self._release_of(Array))
        self.first += count
        self.live += 1
        return 0


class Arrow(WheelCase):

    def test_steps_on_a_table_have_the_bits_of_steps_on_lists(self):
        config = dict(CONFIG, train=dict(CONFIG['train'], loss_weights=True))
        tokens = rows(0) + rows(1) + rows(2)[:2]
        weights = [[0.5 * (i + r) for i in range(4)] for r in range(8)]
        table = Table({'text': ('i', [[]] * 8), 'weights': ('g', weights), 'tokens': ('l', tokens)}, 2)
        with millrace.Run(config) as run, millrace.Run(config) as other, millrace.Rows(table, 5) as read:
            run.init()
            other.init()
            batches = list(read.batches(3))
            self.assertEqual([batch['tokens'].tolist() for batch in batches], [tokens[:3], tokens[3:6], tokens[6:]])
            self.assertEqual([sorted(batch) for batch in batches], [['tokens', 'weights']] * 3)
            self.assertEqual(batches[0]['weights'].format, 'f')
            losses = [run.step(**batch).loss for batch in batches[:2]]
            self.assertEqual(losses, [other.step(tokens[i:i + 3], weights=weights[i:i + 3]).loss for i in (0, 3)])
            with self.assertRaises(millrace.InvalidArgument):  # it has two rows of three
                run.step(**batches[2])
            self.assertIsNone(read.next(3))
            self.assertEqual(table.live, 1)
        self.assertEqual(table.live, 0)
        table.first = 0
        self.assertEqual(len(list(millrace.Rows(table, 5).batches(3, drop_last=True))), 2)
        self.assertEqual(table.live, 0)

    def test_what_is_no_table_of_rows_is_refused(self):
        with self.assertRaisesRegex(millrace.InvalidArgument, 'list has no __arrow_c_stream__'):
            millrace.Rows([[1, 2, 3, 4, 5]], 5)
        with self.assertRaisesRegex(millrace.DataError, "column tokens has values of the format 'f'"):
            millrace.Rows(Table({'tokens': ('f', [[1.0] * 5])}, 1), 5)
        with self.assertRaisesRegex(millrace.DataError, 'no column tokens'):
            millrace.Rows(Table({'ids': ('i', rows())}, 1), 5)
        read = millrace.Rows(Table({'tokens': ('i', rows() + [[1, 2]])}, 2), 5)
        for _ in range(2):
            with self.assertRaisesRegex(millrace.DataError, 'row 3 of column tokens has 2 values; it needs 5'):
                read.next(4)
        for sequences in (0, -1, 2**64 + 1, -2**63 - 1, 1.0, '1', None):
            with self.assertRaisesRegex(millrace.InvalidArgument, 'sequences is'):
                read.next(sequences)
        for row_tokens in (1, 2**31, 2**64 + 5, 5.0):
            with self.assertRaisesRegex(millrace.InvalidArgument, 'row_tokens is'):
                millrace.Rows(Table({'tokens': ('i', rows())}, 2), row_tokens)
        read.close()
        with self.assertRaises(millrace.InvalidArgument):
            read.next(1)
