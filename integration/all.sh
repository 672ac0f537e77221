#!/bin/sh
# The programs of `make test`, in the order that takes the least time: all.sh [lint] [blackbox] [lib]; by default all
# three.
#
#   lint      formatting, and the examples, which no test builds; clippy's lints come with every build
#             (integration/rustc.sh)
#   blackbox  the built daemon against private brokers: the suites and, beside them, the table of faults
#   lib       unit and property tests, the simulator, decoders against generated input, the rules of the source; they
#             are built with what the black-box tests leave of the processors, and run beside the last of them
#
# A failed black-box test is run once more, alone, at the end. If it passes then, it is reported as UNSTEADY and does
# not fail the run; this applies to at most three tests. Nothing else is repeated: no unit test, no world of the
# simulator, and no test with an item that the oracle has found lost or early (a line that begins with VERDICT:).
# AGAIN=no repeats nothing.
#
# Black-box tests that measure times are in modules named `alone`. They run one after the other when all other black-box
# tests have ended, so that no broker's work disturbs them and no test waits for its turn. They leave the processors
# idle for most of their time. So unit tests run beside them, with a lower priority; they must hold beside more than that.
# The suite `own_times`, whose bounds are strict only on an idle machine, comes last and has the machine for itself.
#
# TEST_MINUTES (36): programs that still run after this time are ended and have failed. TEST_THREADS: number of
# concurrent black-box tests. TIDEGATE_BIN: another daemon binary. SUITES: modules of the suites to run instead of all,
# without the table of faults. The output of each program is kept in target/checks.
#
# Brokers' data and files of unit tests are kept in memory if there is enough (TIDEGATE_TEST_NODES names the directory;
# empty: never). The disk is left to the daemons, whose syncs are tested.
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

# The variables that cargo would set.
RUST_MIN_STACK=$(sed -n 's/^RUST_MIN_STACK = "\(.*\)"$/\1/p' .cargo/config.toml)
CARGO_MANIFEST_DIR=$PWD
TIDEGATE_SKIPPED=$out/skipped
RUSTC_WORKSPACE_WRAPPER=$PWD/integration/rustc.sh
export RUST_MIN_STACK CARGO_MANIFEST_DIR TIDEGATE_SKIPPED RUSTC_WORKSPACE_WRAPPER

# Free GiB of a directory in memory (0 if it is not in memory), and of memory.
free_gib() { df -Pk -t tmpfs "$1" 2>/dev/null | awk 'END { print int($4 / 1048576) }'; }
memory_gib() { awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo; }
if [ -z "${TIDEGATE_TEST_NODES+set}" ] && [ "$(free_gib /dev/shm)" -ge 4 ] && [ "$(memory_gib)" -ge 8 ]; then
	TIDEGATE_TEST_NODES=/dev/shm
	export TIDEGATE_TEST_NODES
fi

# Incremental data is half of what a first build writes. Cargo creates the directory in any case.
[ -n "$(ls target/debug/incremental 2>/dev/null)" ] || export CARGO_INCREMENTAL=0
: >"$TIDEGATE_SKIPPED"
: >"$out/phases"
: >"$out/details"

# The crates below src whose unit tests are programs of their own; the daemon's are the last.
crates="engine store amqp wire config common types"

has() { case " $parts " in *" $1 "*) ;; *) false ;; esac; }

left() {
	seconds=$((deadline - $(date +%s)))
	[ "$seconds" -gt 1 ] || seconds=1
	echo "$seconds"
}

# run NAME COMMAND...: runs it until its end or the deadline, and writes its log, exit code and time.
run() {
	run_name=$1
	shift
	[ ! -e "$out/stop" ] || return 130
	run_at=$(date +%s)
	timeout -k 10 "$(left)" "$@" >"$out/$run_name.log" 2>&1 &
	echo $! >"$out/$run_name.pid"
	# The shell would tell here that a program was ended by a signal.
	wait $! 2>/dev/null
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

# The path of a test program that cargo has built, by kind and name of its target.
program() { sed -n '/"profile":{[^}]*"test":true/s/.*"kind":\["'"$2"'"\].*"name":"'"$3"'".*"executable":"\([^"]*\)".*/\1/p' "$out/$1.log" | tail -1; }

# The output of a program without cargo's messages.
tell() { grep -v '^{"reason":' "$out/$1.log"; }

# The panics (or the failed checks of a row) of one failed test, without stack traces.
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

# Names of failed tests: the last list in a program's output.
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

# Counts the tests of a program that has ended, and records its failures.
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

# Whether the failed tests of this program may be repeated.
excusable() {
	number=$(wc -l <"$out/$1.failed")
	[ "$again" = yes ] && [ "$number" -gt 0 ] && [ "$number" -le $((3 - unsteady)) ] || return 1
	! grep -q '^ *VERDICT:' "$out/$1.log"
}

# Repeats the failed tests alone: those that pass now are reported as unsteady, not as failed.
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

# Names each failed test with its output.
name_failed() {
	[ -e "$out/$1.failed" ] || return 0
	while IFS= read -r title; do
		if grep -qxF "$title" "$out/$1.held"; then
			detail "UNSTEADY: $title: failed, and held once more alone"
		else
			detail "FAILED: $title"
		fi
		# All names, but the output only of the first ones: so many failures usually have one cause.
		named=$((named + 1))
		[ "$named" -gt 20 ] || detail "$(said "$1" "$title")"
	done <"$out/$1.failed"
}

# Shows a whole log. After a repetition the last `test result:` line covers both runs.
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

# The last screen: the counts, followed by the failures.
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

# A phase that all later ones need.
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

# Set-up runs beside the build, but what asks for a password runs before it, in the terminal's foreground: a program that
# `run` has started would be stopped by the question. In the background sudo does not ask, it fails.
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo -n"
must_ask() { [ -n "$sudo" ] && [ -n "$("${MAKE:-make}" -s missing)" ] && ! $sudo true 2>/dev/null; }
packages() {
	: >"$out/packages.log"
	"${MAKE:-make}" -s setup
}
fetch() { run fetch "${MAKE:-make}" -s fetch SUDO="$sudo"; }
lint() { run lint "$cargo" fmt --all --check; }
examples() {
	run examples ${1:-} "$cargo" test -p tidegate -p tidegate-bench --features tidegate/top --example demo --example demo-cluster --bin bench --no-run --locked --offline &&
		rm "$out/examples.code"
}
build() {
	run build "$cargo" test -p tidegate --features tidegate/top --test integration --test faults --test fuzz --test tidy --no-run \
		--locked --offline --message-format=json-render-diagnostics
}
# units NAME PRIORITY: builds the unit tests of all crates.
units() {
	units_name=$1
	set -- $2 "$cargo" test -p tidegate
	for each in $crates; do set -- "$@" -p "tidegate-$each"; done
	run "$units_name" "$@" --features tidegate/top --lib --no-run --locked --offline --message-format=json-render-diagnostics
}
setup() { [ "$(cat "$out/setup.code")" -eq 0 ]; }

# What runs beside black-box tests has a slightly lower priority. With the lowest it might never finish on a machine with
# other work.
nice=${BESIDE:-nice -n 4}

check_source() {
	run tidy $nice "$(program build test tidy)"
	run fuzz $nice "$(program build test fuzz)"
}

run_lib() {
	# What is not built is counted as failed, with the compiler's errors.
	units units "$nice" || return
	rm "$out/units.code"
	SEEDS=${SEEDS:-400}
	TMPDIR=${TIDEGATE_TEST_NODES:-${TMPDIR:-/tmp}}
	export SEEDS TMPDIR
	for each in $crates; do run "lib-$each" $nice "$(program units lib "tidegate_$each")"; done
	run lib-daemon $nice "$(program units lib tidegate)"
	! has lint || examples "$nice"
}

! must_ask || must packages
must fetch
(run setup "${MAKE:-make}" -s setup SUDO="$sudo") &
setup_job=$!
if has lint; then
	must lint
	has lib || must examples
fi
must build
wait "$setup_job"
must setup

echo "==> tests"
jobs= early= beside=
if has blackbox; then
	# These tests mostly wait, for due times and for peers that do not answer.
	(RUST_TEST_THREADS=${TEST_THREADS:-$((5 * $(nproc)))} run integration "$(program build test integration)" \
		${suites:---skip ::alone::}) &
	jobs="$jobs $!"
	if [ -z "$suites" ]; then
		(run faults "$(program build test faults)") &
		jobs="$jobs $!"
	fi
fi
if has lib; then
	check_source &
	jobs="$jobs $!"
	if has blackbox; then
		units early "nice -n 19" &
		early=$!
	fi
fi
for job in $jobs; do wait "$job"; done
if [ -n "$early" ]; then
	# The rest is built with a higher priority.
	[ ! -e "$out/early.pid" ] || kill "$(cat "$out/early.pid")" 2>/dev/null
	wait "$early"
fi
if has lib; then
	run_lib &
	beside=$!
fi
measures=
if has blackbox && [ -z "$suites" ]; then
	measures=yes
	RUST_TEST_THREADS=1 run alone "$(program build test integration)" ::alone:: --skip ::own_times::
fi
[ -z "$beside" ] || wait "$beside"
if [ -n "$measures" ]; then
	RUST_TEST_THREADS=1 run idle "$(program build test integration)" ::own_times::alone::
fi

programs="tidy fuzz units"
for each in $crates daemon; do programs="$programs lib-$each"; done
programs="$programs examples faults integration alone idle"
for each in $programs; do count "$each"; done
once_more faults "$(program build test faults)"
for each in integration alone idle; do once_more "$each" "$(program build test integration)"; done
for each in $programs; do
	name_failed "$each"
	show "$each"
done
finish
