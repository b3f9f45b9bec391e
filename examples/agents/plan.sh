#!/bin/sh
# Runs plan.repl.yml against a service of its own: sh examples/agents/plan.sh
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
python3 service.py "$scratch/port" &
service=$!
trap 'kill $service; rm -rf "$scratch"' EXIT
while [ ! -s "$scratch/port" ]; do sleep 0.1; done
repl run plan.repl.yml --input port="$(cat "$scratch/port")" "$@"
