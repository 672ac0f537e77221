#!/bin/sh
# Installs packages, as root: apt.sh PACKAGE... Meanwhile /usr/sbin/policy-rc.d (unless there is one) keeps packages from
# starting services, and PostgreSQL's package creates no cluster.
#
# One process does all of it: a second sudo might ask for the password again, and leave these files behind. No package
# asks anything: this may run in the background, where a program that reads from the terminal is stopped.
set -u
made=
trap '[ -z "$made" ] || rm -f $made' EXIT
# Without `exit`, the script would go on after Ctrl-C, and install without these files.
trap 'exit 130' INT TERM HUP
if [ ! -e /usr/sbin/policy-rc.d ]; then
	made=/usr/sbin/policy-rc.d
	printf '#!/bin/sh\nexit 101\n' >"$made" && chmod 755 "$made" || exit 1
fi
case " $* " in
*" postgresql "*)
	clusters=/etc/postgresql-common/createcluster.d
	made="$made $clusters/tidegate.conf"
	mkdir -p "$clusters" && echo 'create_main_cluster = false' >"$clusters/tidegate.conf" || exit 1
	;;
esac
export DEBIAN_FRONTEND=noninteractive
# Another apt may hold the lock, such as the one that runs after a machine's start.
install() { apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" >/dev/null; }
# That option does not cover the lock of the lists.
update() {
	until=$(($(date +%s) + 300))
	while :; do
		said=$(LC_ALL=C apt-get update -qq 2>&1)
		code=$?
		case $said in
		*" lock "*)
			if [ "$code" -ne 0 ] && [ "$(date +%s)" -lt "$until" ]; then
				sleep 3
				continue
			fi
			;;
		esac
		[ -z "$said" ] || printf '%s\n' "$said" >&2
		return "$code"
	done
}
install "$@" 2>/dev/null || { update && install "$@"; }
