#!/bin/sh
# Runs loop.repl.yml against a scripted model and a service of its own, and approves the mail: sh examples/agents/loop.sh
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
mkfifo "$scratch/open"
python3 service.py "$scratch/port" &
service=$!
python3 model_server.py --script loop.json <"$scratch/open" >"$scratch/url" &
model=$!
exec 3>"$scratch/open"        # the model server ends when this does
trap 'kill $service $model 2>/dev/null; repl control stop >/dev/null 2>&1; rm -rf "$scratch"' EXIT
while [ ! -s "$scratch/port" ] || [ ! -s "$scratch/url" ]; do sleep 0.1; done

# A control plane of its own, which takes its model from the environment.
export REPL_HOME="$scratch/home" OPENAI_MODEL=scripted
OPENAI_BASE_URL=$(head -n 1 "$scratch/url")
export OPENAI_BASE_URL

run=$(repl run loop.repl.yml --input port="$(cat "$scratch/port")" --detach 2>/dev/null)
approval=
while [ -z "$approval" ]; do
  approval=$(repl approval ls --json | python3 -c 'import json, sys; print(*[q["id"] for q in json.load(sys.stdin)][:1])')
  [ -n "$approval" ] || sleep 0.1
done
repl approval approve "$approval" --note 'ann is waiting for it' >&2
repl attach "$run"
