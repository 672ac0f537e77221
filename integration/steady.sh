#!/bin/sh
# Runs the black-box tests RUNS times beside BUSY busy processes, and lists the failures of all runs: steady.sh RUNS
# BUSY. Each run has 90 minutes (TEST_MINUTES). Failed tests are not repeated, so each is unsteady or wrong.
cd "$(dirname "$0")/.." || exit 1
runs=${1:-10}
busy=${2:-6}
bad=0
told=target/steady
mkdir -p "$(dirname "$told")" && : >"$told" || exit 1
for run in $(seq "$runs"); do
	echo "==> run $run of $runs, beside $busy busy processes"
	log=target/steady.$run
	AGAIN=no TEST_MINUTES=${TEST_MINUTES:-90} integration/busy.sh "$busy" integration/all.sh blackbox >"$log" 2>&1
	code=$?
	sed -n '/^RESULT:/,$p' "$log"
	[ "$code" -ne 130 ] || exit 130
	[ "$code" -eq 0 ] || bad=$((bad + 1))
	sed -n 's/^FAILED: //p' "$log" >>"$told"
done
[ ! -s "$told" ] || { echo "failed, with the number of runs:"; sort "$told" | uniq -c; }
echo "$bad of $runs runs have failed; each is in target/steady.N"
[ "$bad" -eq 0 ]
