"""Makes the pictures of load a: pictures.py DIR CLASSES PER_CLASS. A folder per class, JPEG files of about 15 KB."""

import os
import sys

import numpy
from PIL import Image


def main():
    root, classes, per_class = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    random = numpy.random.default_rng(0)
    for label in range(classes):
        folder = os.path.join(root, f"class-{label:03}")
        os.makedirs(folder, exist_ok=True)
        for index in range(per_class):
            # Coarse noise, enlarged: compresses about as well as a photograph does.
            coarse = random.integers(0, 256, (40, 40, 3), dtype=numpy.uint8)
            picture = Image.fromarray(coarse).resize((224, 224), Image.BICUBIC)
            picture.save(os.path.join(folder, f"{index:05}.jpg"), quality=88)


main()
