"""What the forms of make_foreign.py are made of: a trace as it is read, rows of a step, and files as others write them."""
import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

import h5py
import numpy as np


def read(path):
    """Name -> array [n_pos, ...] of a trace, the steps (first, count) and the tokens."""
    with h5py.File(path) as f:
        tensors = {name: f["tensors"][name][()] for name in f["tensors"]}
        return tensors, [(int(s["first"]), int(s["count"])) for s in f["steps"]], f["tokens"][()]


def over_kv(name):
    return name.endswith(("attn_scores", "attn_weights"))


def at_step(name, values, first, count):
    """The rows of a step; attention has the keys up to its end, 3 more as padding, and the heads in front."""
    rows = values[first : first + count]
    if not over_kv(name):
        return rows
    keys = np.zeros((count, rows.shape[1], first + count + 3), rows.dtype)
    keys[:, :, : first + count] = rows[:, :, : first + count]
    return keys.transpose(1, 0, 2)


def halves(values):
    """Neighbouring pairs of every head to halves, as transformers has them."""
    return np.concatenate([values[..., 0::2], values[..., 1::2]], -1)


def layer_and_kind(name):
    return (name.split(".")[1], name.split(".")[2]) if name.startswith("blk.") else ("", name)


def rows_of_step(ref, names, first, count, turn):
    """{their name: [count, n]}; Q and K in halves where `turn`."""
    out = {}
    for name, values in ref[0].items():
        layer, kind = layer_and_kind(name)
        if kind not in names:
            continue
        rows = at_step(name, values, first, count)
        rows = halves(rows) if turn and kind in ("attn_q", "attn_k") else rows
        out[names[kind].format(layer)] = rows if over_kv(name) else rows.reshape(count, -1)
    return out


def whole(rows, end):
    """A cache of 24 positions, filled up to `end`."""
    return np.concatenate([rows[:end], np.zeros((24 - end, *rows.shape[1:]), rows.dtype)])


def save_safetensors(path, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": {"f": "F32", "i": "I64"}[values.dtype.kind], "shape": values.shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(v).tobytes() for v in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def save_trace(out, names, tensors, steps, tokens):
    """Positions first, `names` says which map."""
    with h5py.File(out, "w") as f:
        f.attrs["schema"], f.attrs["version"], f.attrs["names"] = "firstdiff-trace", 1, names
        f["tokens"] = np.asarray(tokens, np.int32)
        f["steps"] = np.array([(a, n, int(i > 0), 2) for i, (a, n) in enumerate(steps)],
                              [("first", "<i4"), ("count", "<i4"), ("kind", "<i4"), ("level", "<i4")])
        for name, values in tensors.items():
            f["tensors/" + name] = values


def save_torch(path, objects):
    """What torch.save writes, without torch: a pickle of stand-ins with its classes' names, storages in files of their own."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storage = type("FloatStorage", (), {"__module__": "torch", "__init__": lambda self, key, values: self.__dict__.update(key=key, values=values)})
    rebuild = types.FunctionType((lambda *_: None).__code__, {}, "_rebuild_tensor_v2")
    rebuild.__module__, rebuild.__qualname__, torch.FloatStorage, utils._rebuild_tensor_v2 = "torch._utils", "_rebuild_tensor_v2", storage, rebuild
    storages = []

    class Tensor:
        def __init__(self, values):
            self.shape = values.shape
            self.storage = storage(str(len(storages)), np.ascontiguousarray(values))
            storages.append(self.storage)

        def __reduce__(self):
            strides = tuple(int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape)))
            return rebuild, (self.storage, 0, self.shape, strides, False, collections.OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", storage, value.key, "cpu", value.values.size) if isinstance(value, storage) else None

    def wrap(value):
        if isinstance(value, (dict, tuple)):
            return {k: wrap(v) for k, v in value.items()} if isinstance(value, dict) else tuple(map(wrap, value))
        return Tensor(value) if isinstance(value, np.ndarray) else value

    sys.modules.update({"torch": torch, "torch._utils": utils})
    text = io.BytesIO()
    Pickler(text, 2).dump(wrap(objects))
    del sys.modules["torch"], sys.modules["torch._utils"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", text.getvalue())
        z.writestr("archive/byteorder", "little")
        for s in storages:
            z.writestr(f"archive/data/{s.key}", s.values.tobytes())
