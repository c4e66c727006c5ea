#!/bin/sh
# Run the tests in two processes: what Triton's interpreter and compiler run takes four minutes, of one core.
# Called by `make test`.
set -u
python=.venv/bin/python
gpu="tests/kernels/triton tests/engine/execute/gpu tests/commands/gpu"

log=$(mktemp)
# shellcheck disable=SC2086
"$python" -m pytest -q -p no:cacheprovider $gpu > "$log" 2>&1 &
other=$!
trap 'kill $other 2>/dev/null; rm -f "$log"' EXIT INT TERM

ignored=
for folder in $gpu; do ignored="$ignored --ignore=$folder"; done
# shellcheck disable=SC2086
"$python" -m pytest $ignored
rest=$?

wait $other
code=$?
echo "The GPU's kernels, steps and benchmark, without a GPU:"
cat "$log"
[ $rest -eq 0 ] && [ $code -eq 0 ]
