#!/bin/sh
# Run the tests in two processes, of about the same length: what Triton's interpreter and compiler run alone takes four
# minutes of one core.
# Called by `make test`.
set -u
python=.venv/bin/python
beside="tests/kernels/triton tests/engine/execute/gpu tests/commands/gpu tests/server tests/api"

log=$(mktemp)
# shellcheck disable=SC2086
"$python" -m pytest -q -p no:cacheprovider $beside > "$log" 2>&1 &
other=$!
trap 'kill $other 2>/dev/null; rm -f "$log"' EXIT INT TERM

ignored=
for folder in $beside; do ignored="$ignored --ignore=$folder"; done
# shellcheck disable=SC2086
"$python" -m pytest $ignored
rest=$?

wait $other
code=$?
echo "Those beside: $beside"
cat "$log"
[ $rest -eq 0 ] && [ $code -eq 0 ]
