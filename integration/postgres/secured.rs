//! Logins to the database: over TLS, with a password from any source, and the messages for a failed login or a
//! missing right; and connections on which nothing happens.

use super::{asked, site, LIMIT};
use std::fs;
use tidegate_harness::{wait_until, workdir, Authority, Config, Daemon, Database, Site};

pub(super) const PASSWORD: &str = "canary@9e1f/pg";
/// The password as encoded in a URI.
pub(super) const ENCODED: &str = "canary%409e1f%2Fpg";
pub(super) const WRONG: &str = "canary-wrong-2b7c";

/// A server that requires TLS and passwords, with a role and its certificate authority.
pub(super) struct Secured {
    server: Database,
    pub(super) authority: Authority,
    role: String,
}

impl Secured {
    /// `None` if PostgreSQL is missing.
    pub(super) fn start(site: &Site<'_>) -> Option<Secured> {
        let server = Database::own("")?;
        let authority = Authority::new(&workdir("pg-certificates"), "pg-ca");
        server.secure(&authority.server("db", "127.0.0.1"));
        let role = format!("{}_tls", site.schema());
        server.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"));
        server.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}"));
        Some(Secured { server, authority, role })
    }

    /// The site's configuration with this password, hosts and parameters.
    pub(super) fn config(&self, site: &Site<'_>, password: &str, hosts: &str, parameters: &str) -> Config {
        let role = &self.role;
        let uri = format!("postgres://{role}{password}@{hosts}/postgres?{parameters}");
        site.in_database(site.config(), &self.server).text("store.uri", &uri)
    }

    pub(super) fn address(&self) -> String {
        self.server.address().to_string()
    }
}

#[test]
fn passwords_and_certificates_may_come_from_anywhere() {
    let site = Site::new("pg-tls");
    let Some(secured) = Secured::start(&site) else { return };
    let dir = workdir("pg-secrets");
    let file = dir.join("store-password");
    fs::write(&file, format!("{PASSWORD}\n")).expect("the password's file");
    let (file, credentials) = (file.to_string_lossy(), dir.to_string_lossy());
    let ca = secured.authority.file().to_string_lossy();
    let address = secured.address();
    let by_file = secured.config(&site, "", &address, "sslmode=require");
    let by_file = by_file.text("store.password_file", &file).text("store.ca_file", &ca);
    let rooted = format!("sslmode=verify-full&sslrootcert={ca}");
    let by_credential = secured.config(&site, "", &address, &rooted);
    let hosts = format!("127.0.0.1:1,{address}");
    let by_uri = secured.config(&site, &format!(":{ENCODED}"), &hosts, &rooted);
    let inbox = site.inbox("shop");
    for (way, config) in [("file", by_file), ("credential", by_credential), ("uri", by_uri)] {
        let mut daemon = Daemon::stopped(&config, &site.dir);
        daemon.environment("CREDENTIALS_DIRECTORY", (way == "credential").then_some(&*credentials));
        daemon.start_again();
        daemon.wait_ready();
        site.client.publish(&site.push("shop", "1").id(way));
        assert_eq!(inbox.batch().ids(), [way]);
        let asked = format!(
            "SELECT DISTINCT ssl, version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = '{}'",
            secured.role
        );
        assert_eq!(secured.server.sql(&asked), "t|TLSv1.3", "{way}");
        daemon.term();
        assert!(daemon.exit(LIMIT).success(), "{way}: {}", daemon.log_tail());
        assert!(!daemon.log().contains(PASSWORD), "{way}: the log tells the password");
    }
}

#[test]
fn a_login_that_fails_says_why_and_waits() {
    let site = Site::new("pg-login");
    let Some(secured) = Secured::start(&site) else { return };
    let other = Authority::new(&workdir("pg-certificates"), "pg-other-ca");
    let ca = |authority: &Authority| authority.file().to_string_lossy().into_owned();
    let (good, address) = (format!(":{ENCODED}"), secured.address());
    let with = |password: &str, parameters: &str| secured.config(&site, password, &address, parameters);
    let trusted = with(&good, "sslmode=require").text("store.ca_file", &ca(&secured.authority));
    let faults = [
        (
            with(&format!(":{WRONG}"), "sslmode=require").text("store.ca_file", &ca(&secured.authority)),
            "28P01",
        ),
        (with(&good, "sslmode=require").text("store.ca_file", &ca(&other)), "UnknownIssuer"),
        (with(&good, "sslmode=disable"), "28000"),
        // By then the server has another certificate.
        (trusted, "not valid for name"),
    ];
    let last = faults.len() - 1;
    for (n, (config, part)) in faults.into_iter().enumerate() {
        if n == last {
            secured.server.secure(&secured.authority.server("elsewhere", "127.0.0.9"));
        }
        let mut daemon = Daemon::stopped(&config, &workdir("pg-login"));
        daemon.start_again();
        // On a busy machine the first login may take too long, and is made again.
        wait_until(&format!("it says {part}"), LIMIT, || {
            let log = daemon.log();
            log.contains("waiting for the store") && log.contains(part)
        });
        wait_until("it waits", LIMIT, || daemon.stage() == "waiting");
        let log = daemon.log();
        assert!(!log.contains(PASSWORD) && !log.contains(WRONG), "{part}: the log tells a password");
        daemon.term();
        assert!(daemon.exit(LIMIT).success(), "{part}: {}", daemon.log_tail());
    }
}

/// The tables are made by another role, and one right was forgotten.
#[test]
fn a_right_that_is_missing_at_the_start_is_waited_for() {
    let Some((site, server, config)) = site("pg-right") else { return };
    let role = format!("{}_right", site.schema());
    server.sql(&format!("CREATE ROLE {role} LOGIN"));
    let mut daemon = Daemon::stopped(&config.text("store.uri", &server.uri_of(&role)), &site.dir);
    server.sql(&daemon.cli(&["schema"]).out);
    let grant = |what: &str| asked(server, &site, &format!("GRANT {what} TO {role}"));
    grant("USAGE ON SCHEMA $");
    grant("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $");
    asked(server, &site, &format!("REVOKE SELECT ON $.rows FROM {role}"));
    let inbox = site.inbox("shop");
    daemon.start_again();
    let reason = "permission denied for table rows (42501)";
    wait_until("it says why", LIMIT, || daemon.log().contains(reason));
    wait_until("it waits", LIMIT, || daemon.stage() == "waiting");
    let told = daemon.state()["links"][0]["detail"].as_str().expect("a sentence").to_owned();
    assert!(told.contains(reason), "{told}");
    assert_eq!(asked(server, &site, "SELECT epoch FROM $.shards"), "0", "it has claimed the store");
    grant("SELECT ON $.rows");
    daemon.wait_ready();
    site.client.publish(&site.push("shop", "1").id("x"));
    assert_eq!(inbox.batch().ids(), ["x"]);
}

/// A server or a proxy may cut a connection that is not used for a time.
#[test]
fn every_connection_is_used_while_nothing_happens() {
    let Some((site, server, config)) = site("pg-rest") else { return };
    let role = format!("{}_rest", site.schema());
    server.sql(&format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE postgres TO {role}"));
    let daemon = site.start(&config.text("store.uri", &server.uri_of(&role)));
    let sessions = |which: &str| {
        let of_role = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}' AND {which}");
        server.sql(&of_role)
    };
    wait_until("it has two", LIMIT, || sessions("true") == "2");
    for _ in 0..2 {
        let since = server.sql("SELECT clock_timestamp()");
        wait_until("both are used", LIMIT, || sessions(&format!("query_start > '{since}'")) == "2");
    }
    assert_eq!(daemon.state()["store"]["lives"], 1, "{}", daemon.log_tail());
}
