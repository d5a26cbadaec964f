"""A tokenizer.json, by the functions of mr_tokenizer."""
import ctypes
import os
from typing import List, Optional, Sequence, Union

from . import _native as native
from ._native import LIBRARY, Owner, check

_PLAIN, _ALONE = 1, 2


class Tokenizer(Owner):
    """Of a tokenizer.json, or of a folder that has one; the ids are those of PyPI's tokenizers. A context manager; close() ends it."""

    def __init__(self, path: Union[str, 'os.PathLike[str]']) -> None:
        handle = ctypes.c_void_p()
        check(LIBRARY.mr_tokenizer_open(native.text(os.fsencode(os.fspath(path)), 'a path'), ctypes.byref(handle)))
        self._held = handle.value

    def encode(self, text: str, *, template: bool = True, plain: bool = False) -> List[int]:
        """Ids. `template`: with the tokens that the file puts around a text; `plain`: what reads like an added token is text."""
        data = text.encode()
        flags = (0 if template else _ALONE) | (_PLAIN if plain else 0)
        count, room = ctypes.c_int64(), len(data) + 16
        while True:
            ids = (ctypes.c_int32 * room)()
            check(LIBRARY.mr_tokenizer_encode(self.handle, data, len(data), flags, ids, room, ctypes.byref(count)))
            if count.value <= room:
                return ids[:count.value]
            room = count.value

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text; bytes that are no UTF-8, as those of a character cut in two, become U+FFFD."""
        given = native.integers(ids, 'ids')
        count, room = ctypes.c_int64(), 8 * len(given) + 16
        while True:
            text = ctypes.create_string_buffer(room)
            check(LIBRARY.mr_tokenizer_decode(self.handle, given, len(given), int(skip_special), text, room, ctypes.byref(count)))
            if count.value <= room:
                return text.raw[:count.value].decode('utf-8', 'replace')
            room = count.value

    def token_id(self, token: str) -> Optional[int]:
        """Of an added token, as '<|endoftext|>'; None: there is none."""
        found = ctypes.c_int32()
        check(LIBRARY.mr_tokenizer_find(self.handle, native.text(token.encode(), 'a token'), ctypes.byref(found)))
        return None if found.value < 0 else found.value

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            LIBRARY.mr_tokenizer_free(held)
