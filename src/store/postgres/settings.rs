//! The settings of a server, and what they mean for the durability of a commit. Pure.

/// Oldest PostgreSQL with all required features, as its version number.
const OLDEST: u32 = 130_000;

/// Settings of the server, of the database and of the role, as they apply to one session.
#[derive(Debug)]
pub(super) struct ServerSettings {
    /// The role that has logged in; a pooler may have chosen it.
    pub(super) login: String,
    /// The role whose rights apply.
    pub(super) role: String,
    /// The server's name of the database; a pooler may have another.
    pub(super) database: String,
    number: u32,
    /// The version for people.
    pub(super) version: String,
    fsync: String,
    /// When a COMMIT returns.
    pub(super) synchronous_commit: String,
    /// The replicas that a COMMIT waits for; empty: none.
    pub(super) standbys: String,
    checksums: String,
}

impl ServerSettings {
    /// Returns one row, for [`ServerSettings::of`]. It is also asked where the session's path is not set.
    pub(super) const QUERY: &str = "SELECT pg_catalog.current_setting('server_version_num'), \
        pg_catalog.current_setting('server_version'), pg_catalog.current_setting('fsync'), \
        pg_catalog.current_setting('synchronous_commit'), \
        pg_catalog.current_setting('synchronous_standby_names', true), \
        pg_catalog.current_setting('data_checksums', true), \
        session_user, current_user, pg_catalog.current_database()";

    /// The settings in the row of [`ServerSettings::QUERY`].
    pub(super) fn of(row: Vec<String>) -> Option<Self> {
        let [number, version, fsync, synchronous_commit, standbys, checksums, login, role, database] =
            row.try_into().ok()?;
        Some(ServerSettings {
            login,
            role,
            database,
            number: number.parse().ok()?,
            version,
            fsync,
            synchronous_commit,
            standbys,
            checksums,
        })
    }

    /// Why no daemon uses this server.
    pub(super) fn refusal(&self, allow_async: bool) -> Option<String> {
        if self.number < OLDEST {
            return Some(format!("PostgreSQL {}; 13 or newer is needed", self.number / 10_000));
        }
        let text =
            "the server runs with fsync = off: a crash of its machine loses confirmed commits. Turn it \
                    on, or set store.allow_async = true";
        (!allow_async && self.is_unsynced()).then(|| text.to_owned())
    }

    /// Whether the server does not wait for its disk at all.
    pub(super) fn is_unsynced(&self) -> bool {
        self.fsync == "off"
    }

    /// Whether a COMMIT returns before it is on the disk, or before its synchronous replica has it.
    pub(super) fn is_commit_lax(&self) -> bool {
        ["off", "local"].contains(&&*self.synchronous_commit)
    }

    /// The value of synchronous_commit for a session whose commits must not be lax. Where the server waits
    /// for more than its disk, that stays.
    pub(super) fn safe_commit(&self) -> &str {
        if self.is_commit_lax() {
            "on"
        } else {
            &self.synchronous_commit
        }
    }

    /// Whether the server notices a page that its disk has damaged.
    pub(super) fn has_checksums(&self) -> bool {
        self.checksums == "on"
    }
}
