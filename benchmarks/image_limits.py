"""Time and memory of reading pictures at the limits.

Run: python -m benchmarks.image_limits [million pixels]

Each picture is made of the sample photo, saved in a format, and read in a process of its own; the
table shows the file's bytes, seconds of processor time and the growth of the peak memory.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "PNG": ("RGB", {"compress_level": 1}),
    "PNG alpha": ("RGBA", {"compress_level": 1}),
    "PNG profile": ("RGB", {"compress_level": 1, "profile": True}),
    "PNG 16 bit": ("I;16", {"compress_level": 1}),
    "JPEG": ("RGB", {"quality": 60}),
    "JPEG progressive": ("RGB", {"quality": 60, "progressive": True}),
    "JPEG CMYK": ("CMYK", {"quality": 60}),
    "WEBP": ("RGB", {"quality": 30, "method": 0}),
    "WEBP lossless": ("RGB", {"lossless": True, "quality": 0, "method": 0}),
    "AVIF": ("RGB", {"quality": 30, "speed": 10}),
    "GIF": ("P", {}),
    "TIFF deflate": ("RGB", {"compression": "tiff_adobe_deflate"}),
    "TIFF 16 bit": ("I;16", {"compression": "tiff_adobe_deflate"}),
    "TIFF float": ("F", {"compression": "tiff_adobe_deflate"}),
    "JPEG2000": ("RGB", {"irreversible": True, "quality_layers": [30]}),  # at most 24 million
    "TGA": ("L", {"compression": "tga_rle"}),
}

CHILD = """
import sys, time
import hookviz.images as images
from hookviz.errors import HookvizError
def peak():
    # Not ru_maxrss, which a process inherits from the one that started it.
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
images.sample_image()
path, name = sys.argv[1:]
data = open(path, "rb").read()
before = peak()
start, cpu = time.perf_counter(), time.process_time()
try:
    picture = images.read_image(data, name=name)
    outcome = "%dx%d" % picture.size
except HookvizError as error:
    outcome = type(error).__name__ + ": " + str(error)[:90]
print("%6.2f s  %6.2f s processor  %7.0f MB more  %s" % (
    time.perf_counter() - start, time.process_time() - cpu,
    (peak() - before) / 1024, outcome))
"""


def main() -> int:
    import numpy as np
    from PIL import Image

    from hookviz.images import sample_image

    million = float(sys.argv[1]) if len(sys.argv) > 1 else 64.0
    side = int((million * 1e6) ** 0.5)
    photo = sample_image("astronaut.png").image
    tiles = np.tile(np.asarray(photo), (side // 512 + 1, side // 512 + 1, 1))[:side, :side]
    base = Image.fromarray(np.ascontiguousarray(tiles))
    Image.MAX_IMAGE_PIXELS = None
    only = sys.argv[2:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for label in only:
            mode, options = CASES[label]
            options = dict(options)
            if mode == "I;16":
                image = Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257)
            else:
                image = base.convert(mode)
            if options.pop("profile", False):
                options["icc_profile"] = _other_profile()
            stream = io.BytesIO()
            image.save(stream, label.split()[0], **options)
            path = Path(folder) / "picture"
            path.write_bytes(stream.getvalue())
            size = len(stream.getvalue()) / 1e6
            del image, stream
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(path), f"picture.{label.split()[0].lower()}"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            print(
                f"{label:18s} {size:7.1f} MB file  {done.stdout.strip() or done.stderr[-300:]}",
                flush=True,
            )
    return 0


def _other_profile() -> bytes:
    """SRGB's profile with red and green swapped: a conversion that has work to do."""
    import struct

    from PIL import ImageCms

    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", data, 128)[0]
    tags = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    data[red + 4 : red + 12], data[green + 4 : green + 12] = (
        data[green + 4 : green + 12],
        data[red + 4 : red + 12],
    )
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
