#!/bin/sh
# RabbitMQ as another release of Debian has it, beside the machine's own: rabbitmq.sh RELEASE (trixie, sid, ..). As root, by
# debootstrap, which loads some 150 MB. It lies in target/rabbitmq/RELEASE; its tools, to be named by TIDEGATE_TEST_SBIN, in
# target/rabbitmq/RELEASE.sbin. Prints the version.
#
# Its Erlang needs its own libc, so each tool enters the release's tree: in mounts of its own, which end with it, and
# with the directory of the tests' files at the same place.
set -eu
cd "$(dirname "$0")/.."
release=${1:?usage: rabbitmq.sh RELEASE}
root=$PWD/target/rabbitmq/$release
sbin=$root.sbin
[ "$(id -u)" = 0 ] || { echo "only root can enter another release's tree" >&2; exit 1; }
if [ ! -e "$root.done" ]; then
	command -v debootstrap >/dev/null || { echo "please install: debootstrap" >&2; exit 1; }
	rm -rf "$root"
	mkdir -p "$root"
	# Its packages start no service there: nothing in the tree is told to.
	debootstrap --variant=minbase --include=rabbitmq-server "$release" "$root" >"$root.log" 2>&1 ||
		{ tail -5 "$root.log" >&2; exit 1; }
	: >"$root.done"
fi
cp /etc/hosts "$root/etc/hosts"
home=$(cd "$root" && ls -d usr/lib/rabbitmq/lib/rabbitmq_server-*)
mkdir -p "$sbin"
for tool in rabbitmq-server rabbitmqctl epmd; do
	inside=/$home/sbin/$tool
	[ "$tool" != epmd ] || inside=/usr/bin/epmd
	cat >"$sbin/$tool" <<EOF
#!/bin/sh
# Made by integration/rabbitmq.sh.
exec unshare --mount -- /bin/sh -c '
	files=\${TMPDIR:-/tmp}
	mkdir -p "$root\$files" &&
	mount --rbind /proc "$root/proc" &&
	mount --rbind /dev "$root/dev" &&
	mount --bind "\$files" "$root\$files" &&
	exec chroot "$root" "\$@"' "$tool" $inside "\$@"
EOF
	chmod +x "$sbin/$tool"
done
echo "${home##*rabbitmq_server-}"
