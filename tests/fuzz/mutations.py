"""Ways to damage a file: bytes, JSON trees, arrays in npz files, headers of pictures and volumes.

All chance comes from the generator that is passed, so that a seed gives the same damage again.
"""

import gzip
import io
import json
import math
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Mutation = Callable[[random.Random, bytes], bytes]

DEEP = "[" * 20_000
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 256, 65_536, 2**31, 2**63, 2**64, 10**12, 10**30, 10**400, -(10**18),
    0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf, "", " ", "0", "nan", "object", "O", "V8", "<U9",
    "uint8", "float64", "../../etc/passwd", "/dev/zero", "\x1b[2J\x1b[31m", "\ud800", "\x00", "a\nb",
    "x" * 10_000,
    [], {}, [[]], [None], [1, 2], {"a": 1}, [0] * 2000, {"": {"": {}}},
)  # fmt: skip


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Some bytes changed, cut out, doubled or put in; more often near the beginning, where headers are."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not data:
            break
        place = rng.randrange(min(len(data), rng.choice((16, 128, 1024, len(data)))))
        way, length = rng.randrange(8), rng.choice((1, 2, 4, 16, 256))
        if way <= 2:
            data[place] = rng.randrange(256)
        elif way == 3:
            data[place] ^= 1 << rng.randrange(8)
        elif way == 4:
            word = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\n", b"\x1b"))
            data[place : place + length] = word * length
        elif way == 5:
            del data[place : place + length]
        elif way == 6:
            data[place:place] = data[place : place + length]
        else:
            del data[place:]
    return bytes(data)


def damaged_json(rng: random.Random, content: bytes) -> bytes:
    """One to three values of a JSON document replaced by odd ones, left out, or put in twice."""
    if rng.random() < 0.03:
        return DEEP.encode()
    document = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        document = damaged_tree(rng, document)
    return json.dumps(document).encode()


def damaged_lines(rng: random.Random, content: bytes) -> bytes:
    """The same for a file with a JSON document a line; lines also change places."""
    lines = content.splitlines()
    number = rng.randrange(len(lines))
    way = rng.randrange(8)
    if way == 0:
        rng.shuffle(lines)
    elif way == 1:
        lines.insert(number, rng.choice(lines))
    else:
        lines[number] = damaged_json(rng, lines[number])
    return b"\n".join(lines) + rng.choice((b"\n", b"\n", b"\n", b""))


def damaged_tree(rng: random.Random, tree: Any) -> Any:
    """A copy of a tree of dicts and lists with one place in it changed."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        way = rng.randrange(12)
        if way == 0:
            return {name: value for name, value in tree.items() if name != key}
        if way == 1:
            return {**tree, rng.choice(("x", "", key + "s", "\x1b[2J")): odd(rng)}
        return {**tree, key: damaged_tree(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        place = rng.randrange(len(tree))
        way = rng.randrange(12)
        if way == 0:
            return tree[:place] + tree[place + 1 :]
        if way == 1:
            return [*tree, tree[place]]
        return [*tree[:place], damaged_tree(rng, tree[place]), *tree[place + 1 :]]
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.3:
        return rng.choice((tree + 1, -tree, tree * 1000, float(tree), str(tree)))
    return odd(rng)


def odd(rng: random.Random) -> Any:
    return rng.choice(ODD)


def damaged_npz(rng: random.Random, content: bytes) -> bytes:
    """A member replaced by an array of another kind, by a lying header, or by no array; or its bytes."""
    if rng.random() < 0.3:
        return damaged_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = rng.choice(list(members))
    way = rng.randrange(6)
    if way == 0:
        members[name] = _npy(_odd_array(rng))
    elif way == 1:
        members[name] = _lying_npy(rng, members[name])
    elif way == 2:
        members[name] = damaged_bytes(rng, members[name])
    elif way == 3:
        members[rng.choice(("extra.npy", "labels.npy", "text.txt", "mask", "../x.npy"))] = members.pop(name)
    elif way == 4:
        members["extra.npy"] = _npy(_odd_array(rng))
    else:
        members.pop(name)
    out = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(out, "w", packing) as file:
        for one, data in members.items():
            file.writestr(one, data)
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def _odd_array(rng: random.Random) -> Any:
    kind = rng.choice(
        (
            *("object", "M8[D]", "m8[s]", "V8", "c8", "S3", "U3", "?", "f2", "f8", "u8", "i1"),
            *("O-strings", "surrogates"),
        )
    )
    shape = rng.choice(
        ((), (0,), (12,), (1,), (12, 1), (12, 6), (12, 0), (12, 16, 16), (12, 2, 16, 16), (12, 16, 16, 3))
    )
    if kind == "O-strings":
        return np.full(shape, "a", dtype=object)
    if kind == "object":
        return np.full(shape, None, dtype=object)
    if kind == "surrogates":
        return np.full(shape, "\ud800\x1b[2J", dtype="U9")
    array = np.zeros(shape, dtype=kind)
    if kind in ("f2", "f8") and array.size:
        array.flat[:] = [rng.choice((0.0, 1.0, -1.0, 1e300, math.nan, math.inf)) for _ in range(array.size)]
    return array


def _lying_npy(rng: random.Random, content: bytes) -> bytes:
    shape = rng.choice(
        ("(1000000000000,)", "(12, 60000, 60000)", "(-1,)", "(0,)", "(12, 2)", "(" * 3000, "'x'", "(1e9,)")
    )
    kind = rng.choice(("|u1", "<f8", "|O", "<U100000000", "|V1000000000", "[('a', '<i4')]", "<M8[s]", "x"))
    text = (
        f"{{'descr': {kind if kind[0] == '[' else repr(kind)}, 'fortran_order': False, 'shape': {shape}, }}\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) % 65_536) + text.encode() + content[128:]


def damaged_png(rng: random.Random, content: bytes) -> bytes:
    """Sizes and kinds declared in its header, with the right checksum; or its bytes."""
    if rng.random() < 0.5:
        return damaged_bytes(rng, content)
    sides = [rng.choice((0, 1, 16, 17, 60_000, 2**31 - 1)) if rng.random() < 0.6 else 16 for _ in "wh"]
    form = bytes(rng.choice((0, 1, 2, 3, 4, 6, 8, 16, 255)) for _ in range(5))
    header = b"IHDR" + struct.pack(">II", *sides) + (form if rng.random() < 0.5 else content[24:29])
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def damaged_nifti(rng: random.Random, content: bytes) -> bytes:
    """Fields of its header; or its bytes. Packed again where it was."""
    packed = content.startswith(b"\x1f\x8b")
    if rng.random() < 0.25:
        return damaged_bytes(rng, content)
    data = bytearray(gzip.decompress(content) if packed else content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, form = rng.choice(
            [(40 + 2 * number, "<h") for number in range(8)]
            + [(70, "<h"), (72, "<h"), (0, "<i"), (252, "<h"), (254, "<h")]
            + [(108, "<f"), (112, "<f"), (116, "<f")]
            + [(76 + 4 * number, "<f") for number in range(8)]
            + [(280 + 4 * number, "<f") for number in range(12)]
            + [(344, "<i"), (348, "<i"), (352, "<i")]
        )  # fmt: skip
        whole = form != "<f"
        value = rng.choice((0, 1, 2, 3, -1, 7, 16, 64, 512, 1024, 1280, 2304, 32_767, -32_768) if whole else
                           (0.0, 1.0, -1.0, 352.0, 1e9, 1e30, math.nan, math.inf, 1e-40))  # fmt: skip
        struct.pack_into(form, data, place, value)
    if rng.random() < 0.1:
        data += bytes(2_000_000)  # packs to next to nothing
    return gzip.compress(bytes(data), 1) if packed else bytes(data)


def damaged_csv(rng: random.Random, content: bytes) -> bytes:
    """A cell replaced, a line doubled or cut; or its bytes."""
    lines = content.decode().split("\n")
    if rng.random() < 0.3:
        return damaged_bytes(rng, content)
    number = rng.randrange(len(lines))
    cells = lines[number].split(",")
    cells[rng.randrange(len(cells))] = str(odd(rng)).encode(errors="replace").decode()
    lines[number] = ",".join(cells) if rng.random() < 0.9 else '"' + "," * rng.choice((1, 200_000))
    if rng.random() < 0.2:
        lines.append(rng.choice(lines))
    return "\n".join(lines).encode(errors="replace")


def damaged_toml(rng: random.Random, content: bytes) -> bytes:
    """A value replaced by an odd one; or its bytes."""
    lines = content.decode().split("\n")
    places = [number for number, line in enumerate(lines) if "=" in line]
    way = rng.randrange(10)
    if way <= 2:
        return damaged_bytes(rng, content)
    key = lines[place := rng.choice(places)].partition("=")[0]
    value = {3: DEEP, 4: "9" * 10_000, 5: "{a = " * 5000}.get(way) or json.dumps(odd(rng))
    lines[place] = f"{key}= {value}"
    return "\n".join(lines).encode()
