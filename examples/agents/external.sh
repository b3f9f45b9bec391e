#!/bin/sh
# Runs external.repl.yml, and a program for its one step: sh examples/agents/external.sh
set -eu
cd "$(dirname "$0")"
repl step poll --tool booking --once -- python3 booking.py &
repl run external.repl.yml
wait $!
