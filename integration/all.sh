#!/bin/sh
# Everything that `make test` runs, in the order that takes the least time: all.sh [lint] [blackbox] [lib], or all three.
#
#   lint      formatting, and what no test is built from; clippy's lints come with every build (integration/rustc.sh)
#   blackbox  the built daemon against private brokers: the suites, and beside them the table of faults
#   lib       unit and property tests, the simulator, decoders against made-up input, the rules of the source; they run
#             beside the black-box tests, which mostly wait, and give way to them
#
# A black-box test that fails is run once more, alone, at the end. If it holds then it is named as UNSTEADY, and the run is
# good all the same; at most three of them. Nothing else is repeated: no unit test, no world of the simulator, and nothing
# that the oracle has called lost or early (a line that begins with VERDICT:). AGAIN=no repeats nothing.
#
# Black-box tests that measure by the clock stand in modules `alone`. They run one after the other when all else has ended:
# so nothing disturbs them, and nobody waits until one of them is alone.
#
# TEST_MINUTES (36): what runs then is ended and has failed. TEST_THREADS: black-box tests at a time. TIDEGATE_BIN: another
# daemon than the one that is built with the tests. SUITES: modules of the suites instead of all of them, which leaves out
# the table of faults. What each program has said stays in target/checks.
#
# The data of the brokers, and what the unit tests write, lie in memory where there is room (TIDEGATE_TEST_NODES names the
# directory; empty: nowhere). The disk is left to the daemons, whose syncs are what is tested.
set -u
cd "$(dirname "$0")/.." || exit 1
cargo=${CARGO:-cargo}
again=${AGAIN:-yes}
suites=${SUITES:-}
parts=${*:-lint blackbox lib}
out=$PWD/target/checks
rm -rf "$out"
mkdir -p "$out" || exit 1
begun=$(date +%s)
deadline=$((begun + ${TEST_MINUTES:-36} * 60))

# As cargo would set them.
RUST_MIN_STACK=$(sed -n 's/^RUST_MIN_STACK = "\(.*\)"$/\1/p' .cargo/config.toml)
CARGO_MANIFEST_DIR=$PWD
TIDEGATE_SKIPPED=$out/skipped
RUSTC_WORKSPACE_WRAPPER=$PWD/integration/rustc.sh
export RUST_MIN_STACK CARGO_MANIFEST_DIR TIDEGATE_SKIPPED RUSTC_WORKSPACE_WRAPPER

# GiB of a directory in memory, and of memory, that may be used; 0 where it is none.
free_gib() { df -Pk -t tmpfs "$1" 2>/dev/null | awk 'END { print int($4 / 1048576) }'; }
memory_gib() { awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo; }
if [ -z "${TIDEGATE_TEST_NODES+set}" ] && [ "$(free_gib /dev/shm)" -ge 4 ] && [ "$(memory_gib)" -ge 8 ]; then
	TIDEGATE_TEST_NODES=/dev/shm
	export TIDEGATE_TEST_NODES
fi

# What the compiler keeps for the next change costs the first build half of what it writes. Cargo makes the directory anyhow.
[ -n "$(ls target/debug/incremental 2>/dev/null)" ] || export CARGO_INCREMENTAL=0
: >"$TIDEGATE_SKIPPED"
: >"$out/phases"
: >"$out/details"

has() { case " $parts " in *" $1 "*) ;; *) false ;; esac; }
lib=
! has lib || lib=yes

left() {
	seconds=$((deadline - $(date +%s)))
	[ "$seconds" -gt 1 ] || seconds=1
	echo "$seconds"
}

# run NAME COMMAND...: to its end or the deadline; leaves its log, its exit code and its time.
run() {
	run_name=$1
	shift
	[ ! -e "$out/stop" ] || return 130
	run_at=$(date +%s)
	timeout -k 10 "$(left)" "$@" >"$out/$run_name.log" 2>&1 &
	echo $! >"$out/$run_name.pid"
	wait $!
	run_code=$?
	rm -f "$out/$run_name.pid"
	echo "$run_code" >"$out/$run_name.code"
	echo "$run_name $(($(date +%s) - run_at))" >>"$out/phases"
	return "$run_code"
}

interrupted() {
	: >"$out/stop"
	for file in "$out"/*.pid; do
		[ -e "$file" ] && kill "$(cat "$file")" 2>/dev/null
	done
	exit 130
}
trap interrupted INT TERM HUP

# Programs that cargo has built, by the kind and name of their target.
program() { sed -n '/"profile":{[^}]*"test":true/s/.*"kind":\["'"$2"'"\].*"name":"'"$3"'".*"executable":"\([^"]*\)".*/\1/p' "$out/$1.log" | tail -1; }

# What a program has said, without cargo's messages.
tell() { grep -v '^{"reason":' "$out/$1.log"; }

# The panics (and a row's faults) of one failed test, without stack traces.
said() {
	title=$2 awk '
		$0 == "---- " ENVIRON["title"] " stdout ----" { on = 1; next }
		/^---- .* stdout ----$/ || /^failures:$/ { on = 0 }
		/^stack backtrace:|^--- end of the daemon/ { quiet = 1 }
		/^thread .* panicked at / { quiet = 0 }
		/^note: / || /^---$/ { quiet = 0; next }
		on && !quiet && NF { print "    " substr($0, 1, 600) }
	' "$out/$1.log" | head -12
}

# Names of failed tests: the last list of a program.
failed_of() {
	awk '
		/^failures:$/ { list = ""; on = 1; next }
		on && /^    [^ ]/ { list = list substr($0, 5) "\n"; next }
		on && NF { on = 0 }
		END { printf "%s", list }
	' "$out/$1.log"
}

detail() { printf '%s\n' "$1" >>"$out/details"; }

passed=0
failed=0
apart=0
unsteady=0
named=0

# Counts a program that has ended, and notes what has failed in it.
count() {
	[ -e "$out/$1.code" ] || return 0
	result=$(sed -n 's/^test result: [^.]*\. \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$out/$1.log" | tail -1)
	code=$(cat "$out/$1.code")
	if [ -z "$result" ]; then
		failed=$((failed + 1))
		why="exit code $code"
		[ "$code" -ne 124 ] && [ "$code" -ne 137 ] || why="it had not ended after ${TEST_MINUTES:-36} minutes of all"
		detail "FAILED: $1 as a whole: $why"
		detail "$(grep -E '^HANGS:|^error(\[|:)' "$out/$1.log" | head -20)"
		detail "$(tail -5 "$out/$1.log" | cut -c 1-300 | sed 's/^/    /')"
		return 0
	fi
	set -- "$1" $result
	passed=$((passed + $2))
	failed=$((failed + $3))
	apart=$((apart + $4))
	failed_of "$1" >"$out/$1.failed"
	if [ "$code" -ne 0 ] && [ "$3" -eq 0 ]; then
		failed=$((failed + 1))
		detail "FAILED: $1 as a whole: exit code $code, and no test of it has failed"
	fi
	: >"$out/$1.held"
}

# May what failed in this program be tried once more?
excusable() {
	number=$(wc -l <"$out/$1.failed")
	[ "$again" = yes ] && [ "$number" -gt 0 ] && [ "$number" -le $((3 - unsteady)) ] || return 1
	! grep -q '^ *VERDICT:' "$out/$1.log"
}

# Once more, alone: those that hold now are no failures, and are named.
once_more() {
	[ -s "$out/$1.failed" ] && excusable "$1" || return 0
	set -- "$1" "$2" --exact
	while IFS= read -r title; do set -- "$@" "$title"; done <"$out/$1.failed"
	name=$1
	shift
	RUST_TEST_THREADS=1 run "$name-again" "$@"
	grep -q '^test result:' "$out/$name-again.log" || return 0
	failed_of "$name-again" >"$out/$name-again.failed"
	grep -vxFf "$out/$name-again.failed" "$out/$name.failed" >"$out/$name.held"
	number=$(wc -l <"$out/$name.held")
	unsteady=$((unsteady + number))
	passed=$((passed + number))
	failed=$((failed - number))
}

# Names each test that failed, with what it said.
name_failed() {
	[ -e "$out/$1.failed" ] || return 0
	while IFS= read -r title; do
		if grep -qxF "$title" "$out/$1.held"; then
			detail "UNSTEADY: $title: failed, and held once more alone"
		else
			detail "FAILED: $title"
		fi
		# All names; what they have said only of the first: then it is one reason.
		named=$((named + 1))
		[ "$named" -gt 20 ] || detail "$(said "$1" "$title")"
	done <"$out/$1.failed"
}

# A whole log; where something was repeated the last `test result:` is that of both runs.
show() {
	[ -e "$out/$1.log" ] || return 0
	echo "==> $1"
	if [ ! -e "$out/$1-again.log" ]; then
		tell "$1"
		return 0
	fi
	tell "$1" | sed 's/^test result:/first run:/'
	echo "==> $1, once more"
	tell "$1-again" | sed 's/^test result:/second run:/'
	held=$(wc -l <"$out/$1.held")
	sed -n 's/^test result: [^.]*\. \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$out/$1.log" | tail -1 |
		while read -r good bad ignored; do
			verdict=FAILED
			[ "$bad" -gt "$held" ] || verdict=ok
			echo "test result: $verdict. $((good + held)) passed; $((bad - held)) failed; $ignored ignored; 0 measured; 0 filtered out; $held unsteady"
		done
}

# The last screen: the counts, and below them what is to be mended.
finish() {
	took=$(($(date +%s) - begun))
	skipped=$(wc -l <"$TIDEGATE_SKIPPED")
	cat "$TIDEGATE_SKIPPED"
	echo "$skipped skipped"
	if [ "$failed" -eq 0 ]; then echo "RESULT: passed"; else echo "RESULT: failed"; fi
	grep -h '^HANGS:' "$out"/*.log
	awk '{ printf "%s%s %d s", (NR > 1 ? ", " : "phases, some beside others: "), $1, $2 } END { print "" }' "$out/phases"
	echo "$passed passed, $failed failed, $skipped skipped, $apart not run by themselves, $unsteady unsteady, $((took / 60)) min $((took % 60)) s"
	grep -v '^$' "$out/details"
	[ "$failed" -eq 0 ]
	exit
}

# A phase without which there is nothing to go on with.
must() {
	echo "==> $1"
	"$1" && return 0
	tell "$1"
	failed=$((failed + 1))
	detail "FAILED: $1"
	detail "$(grep -E '^(error|warning)(\[|:)' "$out/$1.log" | head -20 | sed 's/^/    /')"
	[ ! -e "$out/setup.pid" ] || kill "$(cat "$out/setup.pid")" 2>/dev/null
	finish
}

fetch() { run fetch "${MAKE:-make}" -s fetch; }
lint() { run lint "$cargo" fmt --all --check; }
examples() { run examples ${1:-} "$cargo" test --example demo --example bench --no-run --locked --offline; }
build() {
	run build "$cargo" test ${lib:+--lib} --test integration --test faults --test fuzz --test tidy --no-run \
		--locked --offline --message-format=json-render-diagnostics
}
setup() { [ "$(cat "$out/setup.code")" -eq 0 ]; }

# Beside the black-box tests. With a little less weight and not with none: on a machine that others use it would
# not come to its end.
in_the_shadow() {
	nice=${BESIDE:-nice -n 4}
	run tidy $nice "$(program build test tidy)"
	run fuzz $nice "$(program build test fuzz)"
	SEEDS=${SEEDS:-400} TMPDIR=${TIDEGATE_TEST_NODES:-${TMPDIR:-/tmp}} run lib $nice "$(program build lib tidegate)"
	# Last, when little is left beside it.
	! has lint || { examples "$nice" && rm "$out/examples.code"; }
}

must fetch
(run setup "${MAKE:-make}" -s setup) &
setup_job=$!
if has lint; then
	must lint
	has lib || must examples
fi
must build
wait "$setup_job"
must setup

echo "==> tests"
jobs=
if has blackbox; then
	# They mostly wait: for times to come, and for what does not answer.
	(RUST_TEST_THREADS=${TEST_THREADS:-$((3 * $(nproc)))} run integration "$(program build test integration)" \
		${suites:---skip ::alone::}) &
	jobs="$jobs $!"
	if [ -z "$suites" ]; then
		(run faults "$(program build test faults)") &
		jobs="$jobs $!"
	fi
fi
if has lib; then
	in_the_shadow &
	jobs="$jobs $!"
fi
for job in $jobs; do wait "$job"; done
if has blackbox && [ -z "$suites" ]; then
	RUST_TEST_THREADS=1 run alone "$(program build test integration)" ::alone::
fi

programs="tidy fuzz lib examples faults integration alone"
for each in $programs; do count "$each"; done
once_more faults "$(program build test faults)"
for each in integration alone; do once_more "$each" "$(program build test integration)"; done
for each in $programs; do
	name_failed "$each"
	show "$each"
done
finish
