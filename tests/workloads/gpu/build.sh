#!/bin/sh
# Builds the fake GPU libraries and the loop that uses them: sh build.sh DIR (see fake_gpu.h)
set -eu
here=$(dirname "$0")
mkdir -p "$1"
build() {
    target=$1/$2
    shift 2
    for source in "$here"/*.c "$here"/*.h "$here"/../wl.h; do
        if [ ! "$target" -nt "$source" ]; then
            ${CC:-cc} -O1 -Wall -Wextra -Wno-unused-parameter -fPIC -o "$target.new" "$@"
            mv "$target.new" "$target"
            return
        fi
    done
}
build "$1" libcuda.so.1 -shared -fvisibility=hidden -Wl,-soname,libcuda.so.1 "$here/fake_cuda.c"
build "$1" libcudart.so.12 -shared -fvisibility=hidden -Wl,-soname,libcudart.so.12 -DRUNTIME "$here/fake_cuda.c"
build "$1" libnvidia-ml.so.1 -shared -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 "$here/fake_nvml.c"
build "$1" gpu_loop -pthread "$here/gpu_loop.c"
