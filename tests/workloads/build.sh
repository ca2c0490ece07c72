#!/bin/sh
# Builds the workloads into a directory: sh build.sh DIR
# What is newer than its source is kept. The Python ones are copied, so that DIR alone is enough elsewhere.
set -eu
here=$(dirname "$0")
mkdir -p "$1"

build() { # build SOURCE TARGET OPTION...
    source="$here/$1.${language:-c}"
    result="$out/$2"
    shift 2
    if [ "$result" -nt "$source" ] && [ "$result" -nt "$here/wl.h" ] && [ "$result" -nt "$0" ]; then
        return
    fi
    ${compiler:-${CC:-cc}} -O1 -Wall -Wextra -Wno-unused-parameter -pthread -o "$result.new" "$source" "$@"
    mv "$result.new" "$result"
}

out=$1
for source in "$here"/*.c; do
    name=$(basename "$source" .c)
    case $name in
    pyspend | counter | cached) build "$name" "$name.so" -shared -fPIC ;;
    slab) build slab slab.so -shared -fPIC -fno-builtin && build slab other.so -shared -fPIC -fno-builtin ;;
    # Without the table that PyTorch's own library is looked up in.
    torchlike) build torchlike libtorch_cpu.so -shared -fPIC -Wl,--hash-style=sysv ;;
    # By names of frameworks, of the versions that were looked at.
    compiledlike)
        build compiledlike lib_lightgbm.so -shared -fPIC -DNAME=LGBM_BoosterUpdateOneIter -DWHAT=-1
        build compiledlike libtensorflow_cc.so.2 -shared -fPIC -DWHAT=1 \
            -DNAME=_ZN10tensorflow19KernelAndDeviceFunc3RunEPNS_19ScopedStepContainerERKNS_15EagerKernelArgsE
        build compiledlike libjax_common.so -shared -fPIC -DWHAT=1 -DLOCAL \
            -DNAME=_ZN3xla4ifrt20PjRtLoadedExecutable7ExecuteEN4absl12lts_202601074SpanIN3tsl11RCReferenceINS0_5ArrayEEEEE
        ;;
    # They load libraries.
    unsettle | cacher | passes | compiled) build "$name" "$name" ;;
    *) build "$name" "$name" -static ;;
    esac
done
# By the assembler alone: hosts need no 32-bit library for it.
if [ ! "$out/foreign" -nt "$here/foreign.s" ]; then
    as --32 -o "$out/foreign.o" "$here/foreign.s"
    ld -m elf_i386 -o "$out/foreign" "$out/foreign.o"
    rm "$out/foreign.o"
fi
# The same with the shared C library, which distributions strip.
build spender spender-shared
build allocate allocate-shared
# Nothing tells where its allocator is.
build allocate allocate-stripped -static -s
if command -v musl-gcc >/dev/null; then
    compiler=musl-gcc
    build allocate allocate-musl
    build allocate allocate-musl-static -static
    compiler=
fi
# What calls C++'s operators, with the allocator that is preloaded, and linked to one.
if command -v "${CXX:-c++}" >/dev/null; then
    language=cc compiler="${CXX:-c++} -std=c++17 -Wno-missing-field-initializers"
    build mix mix
    for library in jemalloc.so.2 tcmalloc_minimal.so.4; do
        if [ -e "/usr/lib/x86_64-linux-gnu/lib$library" ]; then
            build mix "mix-${library%%[._]*}" -Wl,--no-as-needed "-l:lib$library"
        fi
    done
    language= compiler=
fi
cp "$here"/*.py "$out/"
sh "$here/gpu/build.sh" "$out/gpu"
cp "$here"/gpu/*.py "$out/gpu/"
