"""Runs bcc's memleak: memleak.py PROGRAM ARG...

Debian 12's bindings call bpf_attach_uprobe without its last argument, which then is whatever lies on the stack, and the
kernel refuses it. Here it is 0, as later bindings have it.
"""

import ctypes
import runpy
import sys

from bcc.libbcc import lib

attach = lib.bpf_attach_uprobe
if len(attach.argtypes) == 6:
    attach.argtypes = [*attach.argtypes, ctypes.c_uint32]
    lib.bpf_attach_uprobe = lambda *given: attach(*given, 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
