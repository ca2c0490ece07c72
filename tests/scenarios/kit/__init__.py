"""What every job of the suite shares: its settings, its clock, calibrated work, loops, and the arithmetic of truth.

A job does not know whether it is watched. It times itself with CLOCK_MONOTONIC, the clock of the kernel probes, into
shared memory, so that timing costs about a microsecond and no system call, and survives a job that is killed.
"""
