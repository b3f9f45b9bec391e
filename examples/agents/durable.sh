#!/bin/sh
# Runs train.sh, which is killed by SIGKILL once: sh examples/agents/durable.sh
cd "$(dirname "$0")" && exec repl run --file train.sh --retry 3 -- sh train.sh
