#!/bin/sh
# Runs a command beside busy processes: busy.sh COUNT COMMAND... A test that passes here also passes on a machine with
# other work. Exits with the command's code.
[ $# -ge 2 ] || { echo "usage: busy.sh COUNT COMMAND..." >&2; exit 2; }
count=$1
shift
busy=
# Each busy process checks now and then that this script still runs.
trap '[ -z "$busy" ] || kill $busy 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP
while [ "$count" -gt 0 ]; do
	sh -c 'while kill -0 "$1" 2>/dev/null; do n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done; done' busy $$ &
	busy="$busy $!"
	count=$((count - 1))
done
"$@"
