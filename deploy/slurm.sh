#!/bin/bash
# A sweep on Slurm, on a Ray cluster over the nodes of one job. From the repository, e.g.
#   SHARED=/mnt/shared sbatch --nodes=4 --gpus-per-node=8 deploy/slurm.sh \
#       sweep=main scale=135m data.path=/mnt/shared/data/fineweb_edu
# SHARED is a folder that all nodes share, for the results; the repository with its .venv lies on
# shared storage too. Keys (WANDB_API_KEY) come along with the environment of sbatch.
#
# Before its time is over, and when it is preempted, Slurm sends SIGTERM to this script, which passes
# it to the sweep: its trials save a checkpoint, and the job is queued again and goes on.
#SBATCH --job-name=pipegap
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

: "${SHARED:?must be a folder that all nodes share}"
STOPPED=143 # exit code of a sweep that saved its checkpoints

cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD" RAY_TMPDIR="${RAY_TMPDIR:-/tmp/ray-$SLURM_JOB_ID}"
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN # of this job alone: srun hands it to the nodes

on() { # on NODES HOW_MANY COMMAND…, in a subshell: once on each node, beside what else runs there
    exec srun --overlap --nodelist="$1" --nodes="$2" --ntasks="$2" --ntasks-per-node=1 "${@:3}"
}
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(head -n 1 <<<"$nodes")
workers=$(tail -n +2 <<<"$nodes" | paste -sd, -)
# By the last node: a node's own name leads to its loopback on many systems.
address=$(scontrol show node --oneliner "$head" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
head_ip=$(on "$(tail -n 1 <<<"$nodes")" 1 getent ahostsv4 "$address" | head -n 1 | cut -d' ' -f1)
: "${head_ip:?must be an address of $address that other nodes know}"

port=$((20000 + SLURM_JOB_ID % 10000 * 4)) # a node may run Ray for others as well
node=(--block "--num-cpus=${SLURM_CPUS_ON_NODE:-1}"
    "--dashboard-agent-listen-port=$((port + 1))" "--metrics-export-port=$((port + 2))")
trap 'kill $(jobs -p) 2>/dev/null' EXIT
on "$head" 1 ray start --head --node-ip-address="$head_ip" --port="$port" \
    --include-dashboard=false "${node[@]}" &
for _ in $(seq 60); do # each look takes seconds
    ray status --address="$head_ip:$port" &>/dev/null && break
    sleep 1
done
if [ -n "$workers" ]; then
    on "$workers" $((SLURM_JOB_NUM_NODES - 1)) ray start --address="$head_ip:$port" "${node[@]}" &
fi

# In the background: bash runs a trap only once the command in front has ended.
RAY_ADDRESS="$head_ip:$port" python -m pipegap sweep results="$SHARED/results" "$@" &
sweep=$!
trap 'kill -TERM $sweep' TERM
until wait $sweep; code=$?; ! kill -0 $sweep 2>/dev/null; do
    : # the signal ended the wait, not the sweep
done
if [ $code -eq $STOPPED ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
