#!/bin/bash
# faultproxy around a Ray job. Save as faultproxy-ray, and submit jobs with it from a machine that reaches the cluster:
#        faultproxy-ray /logs/job-1234 --working-dir . -- python train.py ...
# What stands before -- goes to `ray job submit`. When the job ends, its driver log is fetched (and the head node's worker
# logs, where this machine is the head node), and the hook runs. The exit code is that of `ray job submit`.
#
# FAULTPROXY (default: faultproxy) is the command, FAULTPROXY_OPTIONS more options, RAY the client.

job_dir=$1
shift
ray=${RAY:-ray}
id=${FAULTPROXY_JOB_ID:-faultproxy-$(date +%Y%m%d-%H%M%S)-$$}
mkdir -p "$job_dir" || exit 1

$ray job submit --submission-id "$id" "$@"
code=$?

$ray job logs "$id" > "$job_dir/job-driver-$id.log" 2>/dev/null
session=/tmp/ray/session_latest/logs
if [ -d "$session" ]; then
    mkdir -p "$job_dir/ray" && find -L "$session" -maxdepth 1 -name 'worker-*' -size +0 -exec cp {} "$job_dir/ray/" \;
fi

${FAULTPROXY:-faultproxy} hook run --job-dir "$job_dir" --exit-code "$code" --job-id "$id" ${FAULTPROXY_OPTIONS:-} || true
exit "$code"
