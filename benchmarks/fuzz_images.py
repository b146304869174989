"""Hostile pictures: mutations of valid files, each of which must end in a picture or a sentence.

Run: python -m benchmarks.fuzz_images [count] [--seed N]      (default 10,000, seed 0)

The valid files are made here (no picture is needed). Every mutation is drawn from a generator of
its own number, so ``mutation(seed, i)`` gives the same bytes again for a failure that was printed.
An outcome is "picture", "refused" (an ImageError) or a fault: another exception, a warning, more
than SECONDS of processor time, or a picture that breaks a promise (mode, pixels). The exit code is
1 where there was a fault, the memory grew beyond MEGABYTES or the decoders filled standard error. A
crash of the process itself is reported by its parent, which runs the mutations in pieces.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import random
import struct
import subprocess
import sys
import time
import warnings
import zlib
from dataclasses import dataclass, field

SECONDS = 10.0
MEGABYTES = 1500.0
PIECE = 2500


def seeds() -> dict[str, list[bytes]]:
    """Valid files of each format, small ones: a mutation should hit something that matters."""
    import numpy as np
    from PIL import Image, ImageCms

    rng = np.random.default_rng(7)
    smooth = np.add.outer(np.arange(48), np.arange(64))[..., None] * np.array([1, 2, 3])
    photo = Image.fromarray(((smooth + rng.integers(0, 40, (48, 64, 3))) % 256).astype(np.uint8))
    clear = photo.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(photo.size))
    deep = Image.fromarray(rng.integers(0, 65536, (48, 64), dtype=np.uint16))
    real = Image.fromarray(rng.normal(0, 9, (48, 64)).astype(np.float32))
    frames = [photo.rotate(10 * i) for i in range(1, 4)]
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif[0x0112] = 6
    many = {"save_all": True, "append_images": frames}

    def made(image: Image.Image, kind: str, **options: object) -> bytes:
        stream = io.BytesIO()
        # Copies, for saving as JPEG leaves settings in an image that break saving it as TIFF.
        if "append_images" in options:
            options["append_images"] = [frame.copy() for frame in frames]
        image.copy().save(stream, kind, **options)
        return stream.getvalue()

    grey, palette = photo.convert("L"), photo.convert("P")
    return {
        "PNG": [
            made(photo, "PNG", icc_profile=profile, exif=exif),
            made(clear, "PNG"),
            made(deep, "PNG"),
            made(palette, "PNG", transparency=3),
            made(photo.convert("1"), "PNG"),
            made(photo, "PNG", **many),
        ],
        "JPEG": [
            made(photo, "JPEG", exif=exif, icc_profile=profile),
            made(photo, "JPEG", progressive=True),
            made(grey, "JPEG", restart_marker_blocks=3),
            made(photo.convert("CMYK"), "JPEG"),
            made(photo, "MPO", **many),
        ],
        "WEBP": [
            made(photo, "WEBP", exif=exif, icc_profile=profile),
            made(clear, "WEBP", lossless=True),
            made(photo, "WEBP", **many),
        ],
        "GIF": [made(palette, "GIF", transparency=3), made(photo, "GIF", **many)],
        "TIFF": [
            made(photo, "TIFF"),
            made(clear, "TIFF", compression="tiff_lzw", exif=exif),
            made(deep, "TIFF", compression="tiff_adobe_deflate"),
            made(real, "TIFF"),
            made(photo, "TIFF", compression="jpeg"),
            made(photo.convert("1"), "TIFF", compression="group4"),
            made(photo, "TIFF", compression="packbits"),
            made(photo, "TIFF", **many),
            made(photo.convert("LAB"), "TIFF") if _lab(photo) else made(grey, "TIFF"),
            made(photo, "TIFF", big_tiff=True),
        ],
        "BMP": [made(photo, "BMP"), made(palette, "BMP"), made(clear, "BMP"), made(grey, "BMP")],
        "AVIF": [made(photo, "AVIF", exif=exif, icc_profile=profile), made(clear, "AVIF")],
        "ICO": [made(clear, "ICO"), made(clear, "ICO", bitmap_format="bmp")],
        "JPEG2000": [made(photo, "JPEG2000"), made(clear, "JPEG2000", irreversible=True)],
        "PPM": [made(photo, "PPM"), b"P3 2 2 255 " + b"1 2 3 " * 4, b"Pf 1 1 -1.0\n\0\0\0\0"],
        "TGA": [made(photo, "TGA", compression="tga_rle"), made(clear, "TGA")],
        "QOI": [made(photo, "QOI")],
        "PCX": [made(photo, "PCX"), made(palette, "PCX")],
        "SGI": [made(photo, "SGI")],
    }


def _lab(photo: object) -> bool:
    try:
        photo.convert("LAB")  # type: ignore[attr-defined]
    except ValueError:
        return False
    return True


def mutated(data: bytes, kind: str, rng: random.Random) -> tuple[str, bytes]:
    """One mutation's name and bytes."""
    ways = [_flip, _flip, _cut, _header, _header, _duplicate, _remove, _splice, _extreme, _extreme]
    if kind == "PNG":
        ways += [_png_chunks] * 5
    if kind == "JPEG":
        ways += [_jpeg_segments] * 3
    way = rng.choice(ways)
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        out = way(out, rng)
    return way.__name__.strip("_"), bytes(out)


def _flip(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 2, 8, 40))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _header(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 2, 5))):
        if data:
            data[rng.randrange(min(len(data), 120))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
    return data


def _duplicate(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 4, 64, 1000))]
    return data[:start] + piece * rng.choice((2, 3, 50)) + data[start:]


def _remove(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 100)) :]


def _splice(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data) + 1)
    return (
        data[:start]
        + bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 60))))
        + data[start:]
    )


def _extreme(data: bytearray, rng: random.Random) -> bytearray:
    """A size, count or offset becomes an extreme number, in either byte order."""
    if len(data) < 8:
        return data
    form = rng.choice((">I", "<I", ">H", "<H"))
    top = 2 ** (8 * struct.calcsize(form)) - 1
    value = rng.choice((0, 1, 255, 256, 20000 % (top + 1), top // 2, top // 2 + 1, top - 1, top))
    struct.pack_into(form, data, rng.randrange(min(len(data) - 4, 400)), value)
    return data


def _png_chunks(data: bytearray, rng: random.Random) -> bytearray:
    """Changes a PNG between its chunks, with sums that are right: it gets past the first check."""
    chunks = []
    place = 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        chunks.append(
            (bytes(data[place + 4 : place + 8]), bytes(data[place + 8 : place + 8 + length]))
        )
        place += 12 + length
    if not chunks:
        return data
    i = rng.randrange(len(chunks))
    kind, body = chunks[i]
    way = rng.randrange(6)
    if way == 0:
        chunks[i:i] = [chunks[i]] * rng.choice((1, 2, 300))
    elif way == 1:
        del chunks[i]
    elif way == 2:
        rng.shuffle(chunks)
    elif way == 3:
        changed = _flip(bytearray(body), rng)
        chunks[i] = (kind, bytes(changed))
    elif way == 4 and chunks[0][0] == b"IHDR" and len(chunks[0][1]) == 13:
        header = bytearray(chunks[0][1])
        struct.pack_into(
            ">I", header, rng.choice((0, 4)), rng.choice((0, 1, 47, 65, 8000, 20000, 2**31))
        )
        if rng.random() < 0.5:
            header[rng.choice((8, 9, 12))] = rng.choice((0, 1, 2, 3, 4, 6, 8, 16))
        chunks[0] = (b"IHDR", bytes(header))
    else:
        bomb = zlib.compress(b"\0" * rng.choice((10, 2_000_000)))
        extra = rng.choice((b"zTXt", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"eXIf", b"gAMA", b"cHRM"))
        filled = bomb if rng.random() < 0.5 else bytes(rng.randrange(256) for _ in range(30))
        chunks.insert(i, (extra, b"k\0\0" + filled if extra in (b"zTXt", b"iCCP") else filled))
    return bytearray(
        bytes(data[:8])
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )


def _jpeg_segments(data: bytearray, rng: random.Random) -> bytearray:
    places = [i for i in range(len(data) - 3) if data[i] == 0xFF and data[i + 1] not in (0, 0xFF)]
    if not places:
        return data
    place = rng.choice(places)
    if rng.random() < 0.5:
        data[place + 1] = rng.randrange(0xC0, 0x100)
        return data
    segment = data[place : place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")]
    return data[:place] + segment * rng.choice((1, 3, 40)) + data[place:]


def mutation(number: int, seed: int, files: dict[str, list[bytes]]) -> tuple[str, str, bytes]:
    """The format, the way and the bytes of one mutation, always the same for the same number."""
    rng = random.Random(seed * 1_000_003 + number)  # noqa: S311 - for repeating, not for secrets
    kind = list(files)[number % len(files)]
    way, data = mutated(rng.choice(files[kind]), kind, rng)
    return kind, way, data


@dataclass
class Tally:
    """What came of a number of mutations."""

    counts: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    slowest: tuple[float, int, str] = (0.0, -1, "")
    faults: list[str] = field(default_factory=list)


def examine(first: int, count: int, seed: int, files: dict[str, list[bytes]], tally: Tally) -> None:
    """Reads mutations first … first + count − 1 and enters what came of them."""
    from hookviz.errors import ImageError
    from hookviz.images import read_image
    from hookviz.images._limits import MAX_PIXELS

    for number in range(first, first + count):
        kind, way, data = mutation(number, seed, files)
        before = list(warnings.filters)
        outcome = "fault"
        start = time.process_time()
        try:
            picture = read_image(data, name=f"{number}.{kind.lower()}")
            pixels = picture.image.width * picture.image.height
            if picture.image.mode == "RGB" and 0 < pixels <= MAX_PIXELS:
                outcome = "picture"
            else:
                tally.faults.append(f"{number} {kind} {way}: {picture.image}")
        except ImageError as error:
            outcome = "refused"
            if f"'{number}.{kind.lower()}'" not in str(error) or len(str(error)) > 400:
                outcome = "fault"
                tally.faults.append(f"{number} {kind} {way}: {error}")
        except BaseException as error:  # anything else is what is looked for
            if isinstance(error, KeyboardInterrupt):
                raise
            tally.faults.append(f"{number} {kind} {way}: {type(error).__name__}: {error}")
        spent = time.process_time() - start
        tally.slowest = max(tally.slowest, (spent, number, f"{kind} {way}"))
        if spent > SECONDS:
            outcome = "fault"
            tally.faults.append(f"{number} {kind} {way}: {spent:.1f} s")
        if list(warnings.filters) != before:
            tally.faults.append(f"{number} {kind} {way}: warnings filters changed")
        tally.counts[kind, outcome] += 1


def _worker(first: int, count: int, seed: int) -> int:
    warnings.simplefilter("error")
    tally = Tally()
    examine(first, count, seed, seeds(), tally)
    with open("/proc/self/status") as status:  # noqa: PTH123
        peak = next(
            (int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")), 0.0
        )
    counts = [[kind, outcome, n] for (kind, outcome), n in tally.counts.items()]
    print(
        json.dumps(
            {"counts": counts, "slowest": tally.slowest, "faults": tally.faults, "peak": peak}
        )
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _worker(options.first, options.count, options.seed)
    total, peak, noise = Tally(), 0.0, 0
    end = options.first + options.count
    for first in range(options.first, end, PIECE):
        count = min(PIECE, end - first)
        command = [
            sys.executable,
            "-m",
            "benchmarks.fuzz_images",
            str(count),
            "--first",
            str(first),
        ]
        done = subprocess.run(
            [*command, "--seed", str(options.seed), "--worker"],
            capture_output=True, text=True, check=False, timeout=SECONDS * count,
        )  # fmt: skip
        noise += len(done.stderr.splitlines())
        if done.returncode != 0:
            total.faults.append(
                f"{first}…{first + count - 1}: exit {done.returncode} {done.stderr[-500:]}"
            )
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        for kind, outcome, n in found["counts"]:
            total.counts[kind, outcome] += n
        total.slowest = max(total.slowest, tuple(found["slowest"]))
        total.faults += found["faults"]
        peak = max(peak, found["peak"])
    if peak > MEGABYTES:
        total.faults.append(f"peak memory {peak:.0f} MB")
    if noise > options.count // 10:
        total.faults.append(f"{noise} lines on standard error, a storm")
    print(f"{'format':10s} {'picture':>8s} {'refused':>8s} {'fault':>8s}")
    for kind in dict.fromkeys(k for k, _ in sorted(total.counts)):
        row = [total.counts[kind, outcome] for outcome in ("picture", "refused", "fault")]
        print(f"{kind:10s} {row[0]:8,d} {row[1]:8,d} {row[2]:8,d}")
    sums = [
        sum(n for (_, o), n in total.counts.items() if o == outcome)
        for outcome in ("picture", "refused", "fault")
    ]
    print(f"{'all':10s} {sums[0]:8,d} {sums[1]:8,d} {sums[2]:8,d}   seed {options.seed}")
    seconds, number, what = total.slowest
    print(f"slowest {seconds:.2f} s of processor time (number {number}, {what})")
    print(f"peak memory {peak:.0f} MB, interpreter and torch included")
    # libtiff writes one line for a damaged strip by itself; no setting of Pillow's stops it.
    print(f"{noise} lines on standard error")
    for fault in total.faults[:40]:
        print("FAULT", fault)
    return 1 if total.faults else 0


if __name__ == "__main__":
    sys.exit(main())
