#!/bin/sh
# Runs goal.repl.yml: sh examples/agents/goal.sh
cd "$(dirname "$0")" && exec repl run goal.repl.yml "$@"
