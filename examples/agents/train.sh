# A training script whose epochs are durable steps. Its first attempt is killed in the middle; the second goes on after the last epoch
# that has finished: for those before it, `repl step` prints what they printed then.
for n in 1 2 3; do
  repl step "epoch-$n" -- sh -c 'echo epoch $0, trained by attempt $REPL_ATTEMPT' "$n"
  if [ "$n" = 2 ] && [ "$REPL_ATTEMPT" = 1 ]; then kill -9 $$; fi
done
