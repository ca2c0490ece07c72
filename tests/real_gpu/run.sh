#!/bin/bash
# run.sh TRAINPROF FOLDER [NAME...]: watches training loops on a real GPU for ten seconds each, and prints what trainprof says beside
# what the loops know. Needs root, an NVIDIA GPU and PyTorch with CUDA; about half a minute for each. Recordings stay in FOLDER.
set -u
trainprof=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
shift 2
cd "$(dirname "$0")" || exit 1
[ $# -gt 0 ] || set -- resnet large few_workers no_workers launches pageable pinned read_back checkpoint shared environment \
    empty_cache collate preparation
for name in "$@"; do
    rm -f "$folder/$name".{ready,stop,json,truth.json} "$folder/neighbour.stop"
    # Outside the job.
    [ "$name" = shared ] && python3 jobs.py "$folder" neighbour >"$folder/neighbour.log" 2>&1 &
    python3 jobs.py "$folder" "$name" >"$folder/$name.log" 2>&1 &
    job=$!
    while [ ! -e "$folder/$name.ready" ] && kill -0 $job 2>/dev/null; do sleep 0.1; done
    "$trainprof" attach $job -d 10s -q -o "$folder/$name.rec" --json "$folder/$name.json" >/dev/null 2>"$folder/$name.err"
    touch "$folder/$name.stop"
    wait $job
    touch "$folder/neighbour.stop"
    if [ ! -e "$folder/$name.json" ] || [ ! -e "$folder/$name.truth.json" ]; then
        echo "$name: $(tail -1 "$folder/$name.log") $(tail -1 "$folder/$name.err")"
        continue
    fi
    python3 - "$folder/$name" <<'P'
import json
import sys

told, truth = (json.load(open(sys.argv[1] + end)) for end in (".json", ".truth.json"))
verdict, steps = told["verdict"], told["steps"]
times = steps["time_ms"] or {}
device = next((d for d in told["gpu"]["devices"] if d["used_by_job"]), {})
count = told["duration_s"] * 1e3 / truth["mean_ms"]
print(f"{sys.argv[1].rsplit('/', 1)[-1]}: {verdict['bottleneck']} {verdict['share']}, bound {verdict['speedup_bound']}, gain {truth.get('gain')}")
print(f"    steps {steps['count']} of {count:.0f}, p50 {times.get('p50')} / {truth['p50_ms']:.1f} ms, p95 {times.get('p95')} / {truth['p95_ms']:.1f} ms; "
      f"GPU busy {device.get('util_mean')} / {truth['busy_ms_per_step'] / truth['mean_ms']:.2f} (copies {truth['copy_ms_per_step'] / truth['mean_ms']:.2f}); "
      f"trainprof {told['cost']['collector_cpu_s']} s of CPU time, {told['cost']['collector_rss_max_bytes'] >> 20} MiB")
P
done
