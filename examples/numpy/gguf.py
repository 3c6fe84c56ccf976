"""Reads what this engine needs of a GGUF: the header's values, and tensors of F32, F16 and Q8_0 as float32."""

import struct

import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    def __init__(self, path):
        self._bytes, self._at = open(path, "rb").read(), 0
        magic, version, n_tensor, n_key = self._take("<IIQQ")
        if magic != 0x46554747 or version not in (2, 3):
            raise SystemExit(f"{path}: magic {magic:#x} version {version}, expected a GGUF of version 2 or 3")
        self.values = {}
        for _ in range(n_key):
            key = self._string()
            self.values[key] = self._value(self._take("<I")[0])
        self._tensors = {}
        for _ in range(n_tensor):
            name, n_dim = self._string(), self._take("<I")[0]
            dims = self._take(f"<{n_dim}Q")
            dtype, offset = self._take("<IQ")
            self._tensors[name] = (dims[::-1], dtype, offset)  # GGUF lists the fastest dimension first
        align = self.values.get("general.alignment", 32)
        self._data = -(-self._at // align) * align

    def tensor(self, name):
        """As float32, [rows, columns]; None where the file has none of that name."""
        if name not in self._tensors:
            return None
        shape, dtype, offset = self._tensors[name]
        at, n = self._data + offset, int(np.prod(shape))
        if dtype == 0:
            return np.frombuffer(self._bytes, "<f4", n, at).reshape(shape)
        if dtype == 1:
            return np.frombuffer(self._bytes, "<f2", n, at).astype(np.float32).reshape(shape)
        if dtype == 8:  # blocks of 32: a float16 scale, then 32 int8
            blocks = np.frombuffer(self._bytes, [("d", "<f2"), ("q", "i1", 32)], n // 32, at)
            return (blocks["d"].astype(np.float32)[:, None] * blocks["q"]).astype(np.float32).reshape(shape)
        raise SystemExit(f"{name}: type {dtype}, expected F32 (0), F16 (1) or Q8_0 (8)")

    def _take(self, form):
        found = struct.unpack_from(form, self._bytes, self._at)
        self._at += struct.calcsize(form)
        return found

    def _string(self):
        n = self._take("<Q")[0]
        self._at += n
        return self._bytes[self._at - n : self._at].decode("utf-8", "replace")

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            of, n = self._take("<IQ")
            return [self._value(of) for _ in range(n)]
        return self._take("<" + _SCALARS[kind])[0]
