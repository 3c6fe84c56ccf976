"""seeds_h5py.py FOLDER: traces as others write them with h5py, in every file version that it knows: plain, chunked and compressed,
with many attributes (which HDF5 then stores apart), strings of variable length, links that point elsewhere."""

import sys

import h5py
import numpy as np

folder = sys.argv[1]
rng = np.random.default_rng(1)


def write(name, libver, chunked, dense, linked=True):
    with h5py.File(f"{folder}/{name}.h5", "w", libver=libver) as f:
        f.attrs["schema"] = "firstdiff-trace"
        f.attrs["version"] = 1
        f.attrs["producer"] = "h5py"
        f.attrs["prompt"] = "In the beginning"
        f["tokens"] = np.array([1, 2, 3], "<i4")
        group = f.create_group("tensors", track_order=dense)
        for i in range(12 if dense else 3):
            data = rng.standard_normal((3, 4, 5)).astype(["<f4", "<f2", ">f8"][i % 3])
            options = {}
            if chunked:  # of one position and of two, every filter with and without the others
                options = {"chunks": (1 + i % 2, 4, 5), "maxshape": (None if i % 3 else 3, 4, 5)}
                options |= {"compression": "gzip"} if i % 4 != 3 else {}
                options |= {"shuffle": i % 4 != 1, "fletcher32": i % 4 > 1}
            d = group.create_dataset(f"blk.{i}.q", data=data, **options)
            d.attrs["op"] = "matmul"
            d.attrs["seq"] = i
            for k in range(12 if dense else 0):
                d.attrs[f"note{k}"] = "x" * 20
        if linked:
            group["same"] = h5py.SoftLink("/tensors/blk.0.q")
        if dense:
            group["far"] = h5py.ExternalLink("other.h5", "/x")


versions = [
    v
    for v in ("earliest", "v108", "v110", "v112", "v114")
    if v in h5py.h5f.__dict__ or v == "earliest" or hasattr(h5py.h5f, f"LIBVER_{v.upper()}")
]
for libver in versions:
    for chunked in (False, True):
        write(
            f"h5py-{libver}-{'chunked' if chunked else 'plain'}",
            (libver, libver if libver != "earliest" else "latest"),
            chunked,
            libver != "earliest",
        )
    # without what is refused before any row is read
    write(f"h5py-{libver}-filtered", (libver, libver if libver != "earliest" else "latest"), True, False, False)
