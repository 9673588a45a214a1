#!/bin/sh
# Runs the ladder into the store $1, from the smallest rung up, or from the rung $2 (1 to 6); the same
# command goes on where it was stopped. One core at the lowest priority; CORE=0,1 takes two.
set -eu
store=$1 first=${2:-1} number=0

rung() {  # the words in which it differs from model=nano at the scale tiny
    number=$((number + 1))
    [ "$number" -ge "$first" ] || return 0
    RAY_worker_niceness=19 nice -n 19 taskset -c "${CORE:-0}" \
        pipegap sweep sweep=growth scale=tiny results="$store" "$@"
}

size() {  # width, layers, heads, heads of keys and values, width of SwiGLU
    echo "model.hidden_size=$1 model.num_layers=$2 model.num_heads=$3 model.num_kv_heads=$4" \
        "model.intermediate_size=$5"
}

small=$(size 64 2 2 1 176) second=$(size 96 3 3 1 256)
third=$(size 128 4 4 2 352) top=$(size 192 5 6 2 512)
long="num_updates=15000 optimizer.weight_decay=0.05333"

rung $small model.initializer_range=0.125 batch_size=2
rung $second model.initializer_range=0.1021 batch_size=7
rung $small model.initializer_range=0.125 batch_size=2 $long
rung $third model.initializer_range=0.0884 batch_size=16
rung $second model.initializer_range=0.1021 batch_size=7 $long
rung $top model.initializer_range=0.0722 batch_size=42 'grid.optimizer=[adamw,muon]' 'seeds=[401,402,403]'
