#!/bin/sh
# Builds the workloads into a directory: sh build.sh DIR
# What is newer than its source is kept. The Python ones are copied, so that DIR alone is enough elsewhere.
set -eu
here=$(dirname "$0")
mkdir -p "$1"
for source in "$here"/*.c; do
    name=$(basename "$source" .c)
    if [ "$1/$name" -nt "$source" ] && [ "$1/$name" -nt "$here/wl.h" ]; then
        continue
    fi
    ${CC:-cc} -O1 -Wall -Wextra -Wno-unused-parameter -static -pthread -o "$1/$name.new" "$source"
    mv "$1/$name.new" "$1/$name"
done
cp "$here"/*.py "$1/"
