"""Makes a folder of small JPEG files, in classes: make_pictures.py DIR COUNT. What is there already is kept."""

import os
import sys

import numpy
from PIL import Image

CLASSES = 20
SIZE = 160


def main():
    folder, count = sys.argv[1], int(sys.argv[2])
    random = numpy.random.default_rng(0)
    for number in range(count):
        path = os.path.join(folder, f"class{number % CLASSES:02}", f"{number:05}.jpg")
        if os.path.exists(path):
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Coarse colours enlarged, with some noise: about as large a file as a photograph of this size.
        coarse = random.integers(0, 255, (8, 8, 3), dtype=numpy.uint8)
        pixels = numpy.asarray(Image.fromarray(coarse).resize((SIZE, SIZE), Image.BICUBIC)).astype(numpy.int16)
        pixels += random.integers(-20, 20, pixels.shape, dtype=numpy.int16)
        picture = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
        picture.save(path + ".new", "JPEG", quality=85)
        os.rename(path + ".new", path)


main()
