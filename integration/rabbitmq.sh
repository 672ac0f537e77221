#!/bin/sh
# Installs the RabbitMQ of another Debian release beside the machine's own: rabbitmq.sh RELEASE (trixie, sid, ..). Needs
# root and debootstrap, which downloads some 150 MB. The tree is in target/rabbitmq/RELEASE, its tools (for
# TIDEGATE_TEST_SBIN) in target/rabbitmq/RELEASE.sbin. Prints the version.
#
# Its Erlang needs the libc of its release, so each tool enters the tree with chroot. The mounts are private to the tool
# and end with it; the directory of the tests' files is mounted at the same path.
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
	# Package scripts start no service inside the tree.
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
