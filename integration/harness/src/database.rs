//! A private PostgreSQL server with its own port and directory: nothing of the machine is changed.
//!
//! The machine's own service is never started, stopped or contacted. Syncs are off, because the tests kill
//! processes and not the machine.

use crate::authority::Signed;
use crate::bounds;
use crate::disk::Disk;
use crate::guard;
use crate::ports::free_port;
use crate::proxy::Proxy;
use crate::require::{lacks, skip};
use crate::util::{block_on, wait_until};
use rustix::process::{Pid, Signal};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// The user created by the package: the server refuses to run as root.
pub(crate) const USER: &str = "postgres";

/// Whether all tests keep their stores in a database (`TIDEGATE_TEST_STORE=postgres`).
pub(crate) fn is_meant() -> bool {
    std::env::var("TIDEGATE_TEST_STORE").is_ok_and(|kind| kind == "postgres")
}

/// Whether the tests keep their stores on disk.
pub fn is_on_disk() -> bool {
    !is_meant()
}

/// As [`is_on_disk`], for a test about the disk store; otherwise it is reported as skipped.
pub fn has_disk_store() -> bool {
    if is_meant() {
        skip("it is about the files of a store on the disk");
    }
    !is_meant()
}

/// A server; see the module.
#[derive(Debug)]
pub struct Database {
    port: u16,
    dir: PathBuf,
    programs: PathBuf,
    /// User and group that own its files and run it, if not those of this process.
    owner: Option<(u32, u32)>,
    running: Mutex<Option<Child>>,
}

/// The way to stop a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// SIGINT: connections are closed and everything is written.
    InOrder,
    /// SIGQUIT: like a crash; the next start recovers committed data from its log.
    AtOnce,
    /// SIGKILL of the main process; the others end when they notice.
    Killed,
}

impl Database {
    /// The server shared by all tests of a binary, started at the first use; `None`, which is reported, if
    /// PostgreSQL is not installed.
    pub fn shared() -> Option<&'static Database> {
        bounds::enter();
        static SERVER: OnceLock<Option<Database>> = OnceLock::new();
        let server = SERVER.get_or_init(|| find_programs().map(|programs| Database::start(&programs, "")));
        if server.is_none() {
            lacks("postgresql", "is not installed");
        }
        server.as_ref()
    }

    /// A separate server with extra configuration lines; `None` as in [`Database::shared`].
    pub fn own(conf: &str) -> Option<Database> {
        let server = find_programs().map(|programs| Database::start(&programs, conf));
        if server.is_none() {
            lacks("postgresql", "is not installed");
        }
        server
    }

    fn start(programs: &Path, more: &str) -> Database {
        let server = Database::at_new_place(programs, free_port());
        let mut make = server.program("initdb");
        make.args(["-U", "tidegate", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]);
        if version_of(programs).is_some_and(|version| version >= CHECKSUMS_BY_DEFAULT) {
            // As older versions do without this option, which they do not know.
            make.arg("--no-data-checksums");
        }
        server.make(make);
        server.configure(&format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 300\n\
             shared_buffers = 64MB\nfsync = off\nfull_page_writes = off\nport = {}\n{more}",
            server.port
        ));
        server.serve();
        server
    }

    /// A second server, at this port or a free one, that copies this one as it goes; from now on this one
    /// waits for it at each commit.
    ///
    /// # Panics
    /// If it cannot be made, or does not follow within `LEAST_WAIT`.
    pub fn replica(&self, port: Option<u16>) -> Database {
        let replica = Database::at_new_place(&self.programs, port.unwrap_or_else(free_port));
        let mut copy = replica.program("pg_basebackup");
        copy.args(["-h", "127.0.0.1", "-U", "tidegate", "-R", "-N", "-c", "fast", "-p"])
            .arg(self.port.to_string());
        replica.make(copy);
        replica.configure(&format!("port = {}\n", replica.port));
        replica.serve();
        // Set here, so that the copy does not inherit it.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        wait_until("the replica follows", Duration::from_secs(60), || {
            self.sql("SELECT sync_state FROM pg_stat_replication") == "sync"
        });
        replica
    }

    /// A replica takes writes from now on.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t", "it takes writes within a minute");
    }

    /// From now on the daemons' tables are made on a separate file system of `mib` MiB; `None` as in
    /// [`Disk::mount`].
    pub fn on_small_disk(&self, mib: u64) -> Option<Disk> {
        let place = self.dir.join("small");
        fs::create_dir(&place).expect("a directory of the server");
        let disk = Disk::mount_over(mib, &place)?;
        self.give(&place);
        self.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", place.display()));
        self.sql("ALTER ROLE tidegate SET default_tablespace = small");
        Some(disk)
    }

    fn at_new_place(programs: &Path, port: u16) -> Database {
        let dir = guard::open_dir("pg");
        let owner = is_root().then(|| ids_of(USER).unwrap_or_else(|| panic!("there is no user {USER}")));
        let (programs, running) = (programs.to_owned(), Mutex::default());
        let server = Database { port, dir, programs, owner, running };
        server.give(&server.dir);
        server
    }

    /// Gives a file or directory to the server's user.
    fn give(&self, path: &Path) {
        if let Some((user, group)) = self.owner {
            chown(path, Some(user), Some(group)).expect("a file of the server's user");
        }
    }

    /// Makes the data directory by this program.
    fn make(&self, mut program: Command) {
        let made = program.output().expect("a program of the server");
        assert!(made.status.success(), "{program:?}: {}", String::from_utf8_lossy(&made.stderr));
    }

    fn configure(&self, lines: &str) {
        let conf = self.dir.join("data/postgresql.conf");
        let mut text = fs::read_to_string(&conf).expect("the server's configuration");
        // Of two lines with the same name the last one counts. The present last line may have no end.
        text.push('\n');
        text.push_str(lines);
        fs::write(&conf, text).expect("the server's configuration");
    }

    /// Starts it (again) and waits until it answers.
    pub fn serve(&self) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("the server's log");
        let mut serve = self.program("postgres");
        serve.process_group(0).stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = serve.spawn().expect("the server");
        guard::watch_gently(child.id());
        *self.child() = Some(child);
        wait_until("the database listens", Duration::from_secs(60), || {
            TcpStream::connect(self.address()).is_ok() && self.answer("SELECT 1").is_ok()
        });
    }

    /// From now on it uses this certificate, and all roles but the owner need TLS and a password.
    pub fn secure(&self, signed: &Signed) {
        let data = self.dir.join("data");
        let put = |name: &str, text: &[u8]| {
            let path = data.join(name);
            fs::write(&path, text).expect("a file of the server");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
            self.give(&path);
        };
        put("server.crt", &fs::read(&signed.certificate).expect("a certificate"));
        put("server.key", &fs::read(&signed.key).expect("a key"));
        put(
            "pg_hba.conf",
            b"host all tidegate 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n",
        );
        put("postgresql.auto.conf", b"ssl = on\n");
        let loaded = "SELECT pg_conf_load_time()";
        let before = self.sql(loaded);
        self.sql("SELECT pg_reload_conf()");
        wait_until("it has read that", Duration::from_secs(60), || {
            self.sql(loaded) != before && self.sql("SHOW ssl") == "on"
        });
    }

    /// Stops it and waits for its end.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stop(&self, how: Shutdown) {
        let mut child = self.child().take().expect("a server that runs");
        let signal = match how {
            Shutdown::InOrder => Signal::INT,
            Shutdown::AtOnce => Signal::QUIT,
            Shutdown::Killed => Signal::KILL,
        };
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("a signal to the server");
        child.wait().expect("its end");
        guard::forget(child.id());
    }

    /// Turns checksums of its pages on, between a stop and a start, if they are off.
    pub fn add_checksums(&self) {
        if self.sql("SHOW data_checksums") == "on" {
            return;
        }
        self.stop(Shutdown::InOrder);
        let added = self.program("pg_checksums").arg("--enable").output().expect("pg_checksums");
        assert!(added.status.success(), "pg_checksums: {}", String::from_utf8_lossy(&added.stderr));
        self.serve();
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the server's programs, for its data directory and as its user.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command.arg("-D").arg(self.dir.join("data")).current_dir("/").stdin(Stdio::null());
        command
    }

    /// The URI of the role that owns everything.
    pub fn uri(&self) -> String {
        self.uri_of("tidegate")
    }

    /// The same for another role.
    pub fn uri_of(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// The URI of the owner by way of a proxy in front of this server.
    pub fn uri_by(&self, proxy: &Proxy) -> String {
        self.uri().replace(&self.address().to_string(), &proxy.address().to_string())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// A unique schema name.
    pub fn schema(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer to a query: columns separated by `|`, one line for each row.
    ///
    /// # Panics
    /// If the server returns an error.
    pub fn sql(&self, text: &str) -> String {
        self.answer(text).unwrap_or_else(|error| panic!("the database refuses {text}: {error:?}"))
    }

    /// Runs statements in a transaction, which stays open until it is released.
    ///
    /// # Panics
    /// If the server returns an error.
    pub fn hold(&self, text: &str) -> HeldTransaction {
        let held = block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.uri(), NoTls).await?;
            let _moving = tokio::spawn(connection);
            client.batch_execute(&format!("BEGIN; {text}")).await?;
            Ok::<_, tokio_postgres::Error>(HeldTransaction(client))
        });
        held.unwrap_or_else(|error| panic!("the database refuses {text}: {error:?}"))
    }

    /// Over a connection of this process instead of `psql`: a forked child briefly inherits open files and
    /// locks.
    fn answer(&self, text: &str) -> Result<String, tokio_postgres::Error> {
        block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.uri(), NoTls).await?;
            let moving = tokio::spawn(connection);
            let answers = client.simple_query(text).await?;
            drop(client);
            let _ended = moving.await;
            let mut lines = Vec::new();
            for answer in &answers {
                let SimpleQueryMessage::Row(row) = answer else { continue };
                let columns = (0..row.len()).map(|n| row.get(n).unwrap_or_default());
                lines.push(columns.collect::<Vec<_>>().join("|"));
            }
            Ok(lines.join("\n"))
        })
    }
}

/// An open transaction of [`Database::hold`]; the server undoes it when this is dropped.
#[derive(Debug)]
pub struct HeldTransaction(Client);

impl HeldTransaction {
    /// Undoes it.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn release(self) {
        block_on(self.0.batch_execute("ROLLBACK")).expect("a transaction that was held");
    }
}

/// The first version whose `initdb` turns checksums on by itself.
const CHECKSUMS_BY_DEFAULT: u32 = 18;

fn find_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let all = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let newest = all.filter_map(|programs| Some((version_of(&programs)?, programs))).max()?.1;
    Some(newest).filter(|programs| programs.join("initdb").is_file())
}

/// The version of these programs, `/usr/lib/postgresql/<version>/bin`.
fn version_of(programs: &Path) -> Option<u32> {
    programs.parent()?.file_name()?.to_str()?.parse().ok()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// User and group id of a user.
fn ids_of(user: &str) -> Option<(u32, u32)> {
    let all = fs::read_to_string("/etc/passwd").ok()?;
    let line = all.lines().find(|line| line.split(':').next() == Some(user))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
