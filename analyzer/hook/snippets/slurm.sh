#!/bin/bash
# faultproxy under Slurm. Save as faultproxy-slurm.sh; use it one way or the other.
#
# 1. In a job script, as any user, before the training command:
#        export FAULTPROXY_JOB_DIR=/path/of/this/jobs/logs      # default: the current folder
#        source faultproxy-slurm.sh
#    The hook runs when the script ends, with its exit code, which it does not change. For jobs that may reach their
#    time limit: #SBATCH --signal=B:TERM@180
#
# 2. For every job, as administrator: install executable, and in slurm.conf
#        Epilog=/etc/slurm/faultproxy-slurm.sh
#        PrologEpilogTimeout=300
#    It runs on each node of the job, as the job's user, on FAULTPROXY_JOB_ROOT/<job id> where that is set and there,
#    else on the job's working folder. It never drains a node: its exit code is 0.
#
# FAULTPROXY (default: faultproxy) is the command, FAULTPROXY_OPTIONS more options (--lake /shared/incidents).

faultproxy_hook() {
    ${FAULTPROXY:-faultproxy} hook run --job-dir "$1" --exit-code "$2" --job-id "${SLURM_JOB_ID:-}" ${FAULTPROXY_OPTIONS:-} || true
}

if [ "${BASH_SOURCE[0]}" != "$0" ]; then
    faultproxy_at_exit() {
        local code=$?
        trap - EXIT
        faultproxy_hook "${FAULTPROXY_JOB_DIR:-$PWD}" "$code"
        exit "$code"
    }
    trap faultproxy_at_exit EXIT
    trap 'exit 143' TERM
else
    folder=${FAULTPROXY_JOB_ROOT:-/nonexistent}/$SLURM_JOB_ID
    if [ ! -d "$folder" ]; then
        folder=${SLURM_JOB_WORK_DIR:-$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *WorkDir=//p')}
    fi
    # Slurm gives an epilog status and signal as one number where it gives it at all.
    code=${SLURM_JOB_EXIT_CODE:-}
    if [ -n "$code" ]; then
        code=$(( (code & 127) ? 128 + (code & 127) : (code >> 8) & 255 ))
    fi
    user=${SLURM_JOB_USER:-$(id -un "${SLURM_JOB_UID:-0}")}
    if [ -d "$folder" ] && [ "$(id -u)" = 0 ] && [ "$user" != root ]; then
        export -f faultproxy_hook
        export FAULTPROXY FAULTPROXY_OPTIONS
        runuser -u "$user" -- bash -c 'faultproxy_hook "$@"' bash "$folder" "$code" || true
    elif [ -d "$folder" ]; then
        faultproxy_hook "$folder" "$code"
    fi
    exit 0
fi
