"""Shrinks images in processes, on all cores.

    PENSTOCK_URL=sqlite:///images.db penstock worker images:app
    PENSTOCK_URL=sqlite:///images.db python images.py

The format is PGM, a line of text and then one byte per pixel, so that nothing has to be installed.
"""

from __future__ import annotations

import penstock

app = penstock.App()


@app.task(tube="images", executor="process", ttr=60)
def shrink(image: bytes, by: int) -> bytes:
    """Shrink the image: each new pixel is the mean of a square of by × by pixels."""
    width, height, pixels = read(image)
    small = bytearray()
    for top in range(0, height - height % by, by):
        for left in range(0, width - width % by, by):
            rows = [pixels[(top + row) * width + left :][:by] for row in range(by)]
            small.append(sum(map(sum, rows)) // by**2)
    return write(width // by, height // by, bytes(small))


def read(image: bytes) -> tuple[int, int, bytes]:
    """Returns the width, height and pixels."""
    magic, width, height, _, pixels = image.split(maxsplit=4)
    if magic != b"P5":
        raise penstock.Bury(f"not an image that this program knows: {magic[:20]!r}")  # a retry would not help
    return int(width), int(height), pixels


def write(width: int, height: int, pixels: bytes) -> bytes:
    """Returns the image as the bytes of a file."""
    return b"P5 %d %d 255\n" % (width, height) + pixels


if __name__ == "__main__":
    checkered = write(64, 64, bytes(255 * ((x // 8 + y // 8) % 2) for y in range(64) for x in range(64)))
    handles = shrink.put_many([(checkered, by) for by in (2, 4, 8)])
    print(*(len(handle.result(timeout=60)) for handle in handles))
