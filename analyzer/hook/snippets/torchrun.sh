#!/bin/bash
# faultproxy around torchrun. Save as faultproxy-torchrun, and put it in front of torchrun's arguments:
#        faultproxy-torchrun /logs/job-1234 --nproc-per-node 8 train.py ...
# Every rank's output goes to the job's folder; when torchrun ends, the node with rank 0 runs the hook. The exit code and
# the signals are torchrun's.
#
# FAULTPROXY (default: faultproxy) is the command, FAULTPROXY_OPTIONS more options, TORCHRUN the launcher.

job_dir=$1
shift
node=${GROUP_RANK:-${NODE_RANK:-${SLURM_NODEID:-0}}}
mkdir -p "$job_dir/torchelastic" || exit 1

${TORCHRUN:-torchrun} --log-dir "$job_dir/torchelastic" --redirects 3 --tee 3 "$@" > >(tee -a "$job_dir/console-node-$node.log") 2>&1 &
pid=$!
trap 'kill -TERM "$pid" 2>/dev/null' TERM INT
wait "$pid"
code=$?
# A signal ends `wait`, not torchrun.
while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    code=$?
done
trap '' TERM INT

if [ "$node" = 0 ]; then
    ${FAULTPROXY:-faultproxy} hook run --job-dir "$job_dir" --exit-code "$code" --job-id "${TORCHELASTIC_RUN_ID:-}" ${FAULTPROXY_OPTIONS:-} || true
fi
exit "$code"
