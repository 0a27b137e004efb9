#!/bin/sh
# A worker that starts in a millisecond, for tests of many trials: `quick.sh ENDING SPEC.json --result-fd N ...`.
# Through /dev/fd, because dash takes no descriptor above 9 in `>&`.
ending=$1 result=/dev/fd/$4
say() { printf '%s\n' "$1" >"$result"; }
say '{"event": "started", "t": 0, "pid": 1, "python": "3", "worker_version": 1}'
case $ending in
    ok) say '{"event": "done", "t": 0, "n_requests": 0}' ;;
    half) printf '{"event": ' >"$result" ;;
    abort) kill -ABRT $$ ;;
    orphan) sleep 60 & say '{"event": "done", "t": 0, "n_requests": 0}' ;;
    refused) say '{"event": "error", "t": 0, "kind": "refused", "message": "no"}'; exit 3 ;;
esac
