//! A private PgBouncer in front of a database.

use crate::database::{is_root, Database, USER};
use crate::guard::workdir;
use crate::ports::free_port;
use crate::program::Program;
use crate::require::{on_path, require};
use std::fs;

/// See the module. It ends when dropped.
pub struct Pooler {
    port: u16,
    program: Program,
}

impl Pooler {
    /// Starts it with this `pool_mode` and number of connections to the server. Every role may log in, and has
    /// the rights of the role that owns everything. `None`, which is reported, without the program.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(server: &Database, mode: &str, connections: u32) -> Option<Pooler> {
        if !require("pgbouncer") {
            return None;
        }
        let (dir, port, database) = (workdir("pgbouncer"), free_port(), server.address().port());
        let file = dir.join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={database} user=tidegate\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\ndefault_pool_size = {connections}\n"
        );
        fs::write(&file, text).expect("the pooler's configuration");
        let program = on_path("pgbouncer").expect("the pooler");
        let file = file.to_string_lossy();
        let mut arguments = vec![&*file];
        if is_root() {
            // It refuses to run as root, too.
            arguments.extend(["-u", USER]);
        }
        let program = Program::start(&program.to_string_lossy(), &arguments, &dir);
        program.wait_for("process up");
        Some(Pooler { port, program })
    }

    /// The database's URI through it.
    pub fn uri(&self) -> String {
        self.uri_of("tidegate")
    }

    /// The same for another role.
    pub fn uri_of(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.program.said()
    }
}
