//! `check --connect` with a store in PostgreSQL: each finding, and that the check changes and hinders nothing.

use super::secured::{Secured, ENCODED, PASSWORD, WRONG};
use super::{asked, serves, site, LIMIT};
use std::fs;
use std::time::Instant;
use tidegate_harness::{
    wait_until, workdir, Authority, Config, Daemon, Database, Ledger, Pooler, Proxy, Recorder, Site, Told,
    WallClock, Welcome,
};

const CHECK: [&str; 4] = ["check", "--connect", "--output", "json"];

/// The findings about the database: level and text.
fn about_the_database(told: &Told) -> Vec<(String, String)> {
    let document = told.json();
    let findings = document["findings"].as_array().expect("findings").iter();
    let about = findings.filter(|finding| finding["subject"] == "database");
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().expect("a text").to_owned();
    about.map(|finding| (text(finding, "level"), text(finding, "text"))).collect()
}

/// A check with this configuration. If a server has not answered in time, it may have been busy: once more.
fn checked(config: &Config) -> Told {
    let check = || Daemon::stopped(config, &workdir("pg-check")).cli(&CHECK);
    let told = check();
    if told.out.contains("no answer within 5 s") {
        check()
    } else {
        told
    }
}

/// The findings of a check with this configuration.
fn found(config: &Config) -> Vec<(String, String)> {
    about_the_database(&checked(config))
}

/// The texts with this level.
fn of_level<'f>(found: &'f [(String, String)], wanted: &str) -> Vec<&'f str> {
    found.iter().filter(|(level, _)| level == wanted).map(|(_, text)| &**text).collect()
}

/// Checks that one finding has this level and contains this text. Returns it.
fn says<'f>(found: &'f [(String, String)], level: &str, part: &str) -> &'f str {
    let all = of_level(found, level);
    let one = all.iter().find(|text| text.contains(part));
    one.unwrap_or_else(|| panic!("no `{level}` with {part:?}: {found:#?}"))
}

/// The only fault, which contains this text.
fn only_fault<'f>(found: &'f [(String, String)], part: &str) -> &'f str {
    let faults = of_level(found, "fail");
    assert!(faults.len() == 1 && faults[0].contains(part), "{part:?}: {found:#?}");
    faults[0]
}

/// A role that may log in, named after the site's schema.
fn role(server: &Database, site: &Site<'_>, config: &Config) -> (String, Config) {
    let role = format!("{}_role", site.schema());
    server.sql(&format!("CREATE ROLE {role} LOGIN"));
    let config = config.clone().text("store.uri", &server.uri_of(&role));
    (role, config)
}

/// The statements that a finding says to run.
fn mend(text: &str) -> &str {
    let (_, rest) = text.split_once("un `").unwrap_or_else(|| panic!("nothing to run: {text}"));
    rest.split('`').next().expect("statements")
}

#[test]
fn a_healthy_database_has_no_fault_before_the_first_start_and_after_it() {
    let Some(server) = Database::own("fsync = on") else { return };
    server.add_checksums();
    let site = Site::new("pg-check");
    let config = site.in_database(site.config(), &server).set("store.allow_async", "false");
    let daemon = Daemon::stopped(&config, &site.dir);
    let told = daemon.cli(&CHECK);
    let first = about_the_database(&told);
    assert_eq!((told.code, told.json()["ok"].as_bool()), (0, Some(true)), "{told:?}");
    assert_eq!((of_level(&first, "fail").len(), of_level(&first, "warn").len()), (0, 0), "{first:#?}");
    let address = server.address();
    says(
        &first,
        "ok",
        &format!("logged in to `postgres` at {address} as 'tidegate', without TLS: PostgreSQL "),
    );
    says(&first, "note", "synchronous_standby_names is empty");
    says(&first, "ok", "agrees with this machine's");
    says(&first, "ok", "the first start makes them");
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{}'", site.schema());
    assert_eq!(server.sql(&schemas), "0", "the check makes nothing");
    let mut serving = site.start(&config);
    let second = about_the_database(&serving.cli(&CHECK));
    assert_eq!((of_level(&second, "fail").len(), of_level(&second, "warn").len()), (0, 0), "{second:#?}");
    says(&second, "ok", "has all rights on the tables");
    let owner = asked(&server, &site, "SELECT owner FROM $.shards");
    says(&second, "ok", &format!("the store belongs to {owner}; its lease ends in "));
    serving.kill9();
    asked(&server, &site, "UPDATE $.shards SET expires = clock_timestamp() - interval '1 ms'");
    says(&found(&config), "note", &format!("the last owner of the store, {owner}, has lost its lease"));
    serving.start_again();
    serving.wait_ready();
    serving.term();
    assert!(serving.exit(LIMIT).success(), "{}", serving.log_tail());
    says(&found(&config), "ok", "no daemon owns the store");
    let plain = serving.cli(&["check"]);
    assert!(plain.code == 0 && plain.out.contains("(not checked; --connect checks it)"), "{plain:?}");
}

#[test]
fn what_makes_commits_unsafe_is_told_and_weighed_by_allow_async() {
    let Some((site, _, config)) = site("pg-check-async") else { return };
    let strict = config.clone().set("store.allow_async", "false");
    // The server of the tests syncs nothing, and has no checksums and no replica.
    let accepted = found(&config);
    assert_eq!(of_level(&accepted, "fail").len(), 0, "{accepted:#?}");
    says(&accepted, "warn", "fsync = off, and store.allow_async = true accepts it");
    says(&accepted, "warn", "data_checksums is off");
    says(&accepted, "note", "synchronous_standby_names is empty");
    let refused = found(&strict);
    only_fault(&refused, "the server runs with fsync = off: a crash of its machine loses confirmed commits");
    says(&refused, "ok", "the first start makes them");

    let standbys = "fsync = on\nsynchronous_standby_names = 'elsewhere'";
    let Some(own) = Database::own(standbys) else { return };
    own.add_checksums();
    let strict = site.in_database(site.config(), &own).set("store.allow_async", "false");
    // The test's own commits wait for no replica.
    own.sql("SET synchronous_commit = local; ALTER ROLE tidegate SET synchronous_commit = local");
    let (role, strict) = role(&own, &site, &strict);
    own.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}"));
    let safe = found(&strict);
    let doubts = ["fail", "warn", "note"].map(|level| of_level(&safe, level).len());
    assert_eq!(doubts, [0; 3], "{safe:#?}");
    let lax = strict.clone().set("store.allow_async", "true");
    for (change, value, lost) in [
        (format!("ALTER ROLE {role}"), "off", "before it is on a disk"),
        ("ALTER DATABASE postgres".to_owned(), "local", "before a synchronous replica has it"),
        ("ALTER SYSTEM".to_owned(), "off", "before it is on a disk"),
    ] {
        let changed = |what: &str| {
            own.sql(&format!("{change} {what}"));
            own.sql("SELECT pg_reload_conf()");
        };
        changed(&format!("SET synchronous_commit = {value}"));
        let part = format!("synchronous_commit is {value}");
        wait_until("the server has read it", LIMIT, || {
            found(&strict).iter().any(|(_, text)| text.starts_with(&part))
        });
        let refused = found(&strict);
        let text = only_fault(&refused, &part);
        for said in [lost, "The daemon turns it on in its own sessions", "store.allow_async"] {
            assert!(text.contains(said), "{change}: {text}");
        }
        let accepted = found(&lax);
        assert_eq!(of_level(&accepted, "fail").len(), 0, "{change}: {accepted:#?}");
        let text = says(&accepted, "warn", "store.allow_async = true leaves it so");
        assert!(text.starts_with(&part) && text.contains(lost), "{change}: {text}");
        // What the finding says to run mends it, whichever level set it.
        own.sql(mend(text));
        assert_eq!(of_level(&found(&strict), "fail").len(), 0, "{change}");
        own.sql(&format!("ALTER ROLE {role} IN DATABASE postgres RESET synchronous_commit"));
        changed("RESET synchronous_commit");
    }
}

#[test]
fn a_database_that_is_not_reached_is_a_fault_with_the_reason_and_no_password_is_told() {
    let site = Site::new("pg-check-login");
    let Some(secured) = Secured::start(&site) else { return };
    let ca = secured.authority.file().to_string_lossy().into_owned();
    let with = |password: &str, hosts: &str, parameters: &str| {
        secured.config(&site, &format!(":{password}"), hosts, parameters).text("store.ca_file", &ca)
    };
    let address = secured.address();
    let tls = "sslmode=require";
    let silent = Proxy::start(address.parse().expect("an address"));
    silent.welcome(Welcome::Silent);
    for (config, part) in [
        (with(WRONG, &address, tls), "28P01"),
        (with(ENCODED, &address, "sslmode=disable").unset("store.ca_file"), "28000"),
        (with(ENCODED, &silent.address().to_string(), tls), "no answer within 5 s"),
        (with(ENCODED, "127.0.0.1:1", tls), "127.0.0.1:1: error connecting to server: Connection refused"),
        (with(ENCODED, &format!("localhost.invalid:5432,{address}"), tls), ""),
    ] {
        let begun = Instant::now();
        let told = checked(&config);
        assert!(begun.elapsed() < LIMIT, "{part}: {:?}", begun.elapsed());
        let found = about_the_database(&told);
        if part.is_empty() {
            assert_eq!((told.code, of_level(&found, "fail").len()), (0, 0), "{told:?}");
            says(&found, "ok", "with TLS: PostgreSQL ");
            says(&found, "warn", "no login at localhost.invalid:5432, so no daemon could use it");
        } else {
            assert_eq!((told.code, found.len()), (1, 1), "{told:?}");
            only_fault(&found, part);
        }
        for secret in [PASSWORD, ENCODED, WRONG] {
            assert!(!told.out.contains(secret) && !told.err.contains(secret), "a password: {told:?}");
        }
    }
}

#[test]
fn every_host_is_logged_in_at() {
    let (Some(primary), Some(other)) = (Database::own(""), Database::own("")) else { return };
    let site = Site::new("pg-check-hosts");
    let (role, config) = role(&primary, &site, &site.in_database(site.config(), &primary));
    primary.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}"));
    other.sql(&format!("CREATE ROLE {role} LOGIN"));
    let replica = primary.replica(None);
    let at = |hosts: &[String]| {
        let uri = format!("postgres://{role}@{}/postgres?sslmode=disable", hosts.join(","));
        found(&config.clone().text("store.uri", &uri))
    };
    let [main, copy, alien] = [&primary, &replica, &other].map(|server| server.address().to_string());
    let silent = Proxy::start(primary.address());
    silent.welcome(Welcome::Silent);
    let (nothing, silent) = ("127.0.0.1:1".to_owned(), silent.address().to_string());
    let usual = of_level(&at(std::slice::from_ref(&main)), "warn").len();
    for (others, level, part) in [
        (&copy, "ok", format!("logged in at {copy}, a replica: takes no writes")),
        (&main, "ok", format!("logged in at {main}: the same server")),
        (&alien, "warn", "takes writes as well, and is another server".to_owned()),
        (&nothing, "warn", format!("no login at {nothing}, so no daemon could use it after a failover: ")),
        (&silent, "warn", "no answer within 5 s".to_owned()),
    ] {
        for hosts in [[main.clone(), others.clone()], [others.clone(), main.clone()]] {
            let found = at(&hosts);
            assert_eq!(of_level(&found, "fail").len(), 0, "{hosts:?}: {found:#?}");
            says(&found, level, &part);
            let used = if *others == alien { &hosts[0] } else { &main };
            says(&found, "ok", &format!("logged in to `postgres` at {used} as "));
            let warnings = of_level(&found, "warn").len() - usize::from(level == "warn");
            // The other server has no right for the role to make the tables.
            assert_eq!(warnings, usual + usize::from(*used == alien), "{hosts:?}: {found:#?}");
        }
    }
    // The role alone is refused there.
    let authority = Authority::new(&workdir("pg-check-hosts"), "pg-ca");
    replica.secure(&authority.server("db", "127.0.0.1"));
    for hosts in [[main.clone(), copy.clone()], [copy.clone(), main.clone()]] {
        let found = at(&hosts);
        let text = says(&found, "warn", &format!("no login at {copy}"));
        assert!(text.contains("28000") && of_level(&found, "fail").is_empty(), "{found:#?}");
    }
    // No host takes writes.
    let read_only = at(&[copy.clone(), nothing.clone()]);
    assert_eq!(read_only.len(), 1, "{read_only:#?}");
    let text = only_fault(&read_only, "28000");
    assert!(text.contains(&nothing), "{text}");
    other.sql(&format!("ALTER ROLE {role} SET default_transaction_read_only = on"));
    says(&at(&[main, alien.clone()]), "warn", "takes no writes, and is no replica");
    let read_only = at(&[alien]);
    only_fault(&read_only, "does not allow writes");
    assert_eq!(read_only.len(), 1, "{read_only:#?}");
}

#[test]
fn connections_that_are_used_up_are_told() {
    let Some((site, server, owner)) = site("pg-check-limit") else { return };
    let (role, config) = role(server, &site, &owner);
    server.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}; ALTER ROLE {role} CONNECTION LIMIT 1"));
    let full = found(&config);
    let text = says(&full, "warn", "connections are used up: ");
    for said in ["53300", "The check needs two beside those of the daemons"] {
        assert!(text.contains(said) && of_level(&full, "fail").is_empty(), "{full:#?}");
    }
    let left = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'");
    wait_until("its connections end", LIMIT, || server.sql(&left) == "0");
    server.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT 2"));
    let enough = found(&config);
    assert_eq!(of_level(&enough, "fail").len(), 0, "{enough:#?}");
    says(&enough, "ok", "the first start makes them");
}

/// The role of the URI is not the one whose rights apply.
#[test]
fn what_is_advised_names_the_roles_of_the_server() {
    let Some((site, server, owner)) = site("pg-check-roles") else { return };
    let (login, config) = role(server, &site, &owner);
    let rights = format!("{}_Rights", site.schema());
    server.sql(&format!("CREATE ROLE \"{rights}\"; GRANT \"{rights}\" TO {login}"));
    server.sql(&format!("ALTER ROLE {login} SET role = '{rights}'"));
    server.sql(&format!("ALTER ROLE {login} SET synchronous_commit = off"));
    server.sql(&Daemon::stopped(&owner, &site.dir).cli(&["schema"]).out);
    let before = found(&config);
    says(&before, "ok", &format!("as '{login}' with the rights of '{rights}', without TLS"));
    server.sql(mend(says(&before, "fail", "the right USAGE on schema")));
    server.sql(mend(says(&found(&config), "fail", "rights on the tables")));
    let lax = found(&config);
    let text = says(&lax, "warn", "synchronous_commit is off");
    assert!(text.contains(&format!("ALTER ROLE \"{login}\" IN DATABASE \"postgres\" SET")), "{text}");
    server.sql(mend(text));
    let mended = found(&config);
    assert_eq!(of_level(&mended, "fail").len(), 0, "{mended:#?}");
    assert!(!mended.iter().any(|(_, text)| text.contains("synchronous_commit is off")), "{mended:#?}");
    // Through a pooler the role of the URI does not count at all.
    let Some(pooler) = Pooler::start(server, "session", 5) else { return };
    let through = found(&config.text("store.uri", &pooler.uri_of("somebody")));
    says(&through, "ok", "as 'tidegate', without TLS");
}

#[test]
fn a_store_on_the_disk_beside_it_is_a_fault() {
    let Some((site, _, config)) = site("pg-check-disk") else { return };
    let mut daemon = Daemon::stopped(&config, &site.dir);
    let data = site.dir.join("store/db");
    fs::create_dir_all(&data).expect("a directory");
    let told = |arguments: &[&str]| {
        let told = daemon.cli(arguments);
        let findings = told.json()["findings"].as_array().expect("findings").clone();
        let store = findings.into_iter().find(|finding| finding["subject"] == "store").expect("the store");
        (told.code, store["level"].as_str().unwrap_or_default().to_owned(), store["text"].to_string())
    };
    let plain = ["check", "--output", "json"];
    let (code, level, text) = told(&plain);
    assert_eq!((code, &*level), (0, "ok"), "{text}");
    fs::write(data.join("other"), "").expect("a file");
    for with in [&plain[..], &CHECK] {
        let (code, level, text) = told(with);
        assert!(code == 1 && level == "fail" && text.contains("missing, although"), "{level}: {text}");
    }
    fs::write(data.join("version"), "").expect("a file");
    for with in [&plain[..], &CHECK] {
        let (code, level, text) = told(with);
        assert!(
            code == 1 && level == "fail" && text.contains("holds a store on the disk"),
            "{level}: {text}"
        );
    }
    assert!(!site.dir.join("store/LOCK").exists(), "the check locks nothing");
    daemon.start_again();
    assert_eq!(daemon.exit(LIMIT).code(), Some(78), "{}", daemon.log_tail());
    assert!(daemon.log().contains("holds a store on the disk"), "{}", daemon.log_tail());
}

#[test]
fn each_right_that_is_missing_is_named_with_the_grant_that_mends_it() {
    let Some((site, server, owner)) = site("pg-check-rights") else { return };
    let (role, config) = role(server, &site, &owner);
    let tables = Daemon::stopped(&owner, &site.dir).cli(&["schema"]).out;
    server.sql(&tables);
    let name = site.schema();
    let usage = format!("the right USAGE on schema `{name}` is missing");
    let before = found(&config);
    server.sql(mend(only_fault(&before, &usage)));
    // All of them at once, in one finding.
    let before = found(&config);
    let text = only_fault(&before, "rights on the tables");
    let all = "SELECT on `cluster`; SELECT, UPDATE on `shards`; SELECT, INSERT, UPDATE, DELETE on `nodes`; \
               SELECT, INSERT, UPDATE, DELETE on `items`; SELECT, INSERT, UPDATE, DELETE on `rows`; \
               SELECT, INSERT, UPDATE, DELETE on `ended`";
    assert!(text.contains(all), "{text}");
    server.sql(mend(text));
    let has_all = || {
        let found = found(&config);
        assert_eq!(of_level(&found, "fail").len(), 0, "{found:#?}");
        says(&found, "ok", "has all rights on the tables");
        says(&found, "ok", "no daemon owns the store");
    };
    has_all();
    for (table, rights) in [
        ("cluster", &["SELECT"][..]),
        ("shards", &["SELECT", "UPDATE"]),
        ("nodes", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
        ("items", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
        ("rows", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
        ("ended", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ] {
        for right in rights {
            server.sql(&format!("REVOKE {right} ON {name}.{table} FROM {role}"));
            let found = found(&config);
            let grant = format!("GRANT {right} ON \"{name}\".{table} TO \"{role}\"");
            let text = only_fault(&found, &format!("are missing: {right} on `{table}`. Run `{grant}`"));
            server.sql(mend(text));
        }
    }
    has_all();
    // These rights are enough for a daemon.
    serves(&site.start(&config));
}

#[test]
fn a_first_start_that_would_fail_is_told() {
    let Some((site, server, owner)) = site("pg-check-first") else { return };
    let (role, config) = role(server, &site, &owner);
    let refused = found(&config);
    assert_eq!(of_level(&refused, "fail").len(), 0, "{refused:#?}");
    let text = says(&refused, "warn", "this role may not make the tables");
    assert!(text.contains("tidegate schema") && text.contains("42501"), "{text}");
    server.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}"));
    says(&found(&config), "ok", "the first start makes them");
    // Tables of another program are in the way.
    let name = site.schema();
    server.sql(&format!("CREATE SCHEMA {name} AUTHORIZATION {role}; CREATE TABLE {name}.items ()"));
    only_fault(&found(&config), "42P07");
    assert_eq!(server.sql(&format!("SELECT to_regclass('{name}.cluster') IS NULL")), "t", "nothing is made");
}

#[test]
fn tables_that_do_not_fit_are_told() {
    let Some((site, server, config)) = site("pg-check-tables") else { return };
    server.sql(&Daemon::stopped(&config, &site.dir).cli(&["schema"]).out);
    for (change, back, part) in [
        ("UPDATE $.cluster SET format = 99", "UPDATE $.cluster SET format = 2", "its tables have format 99"),
        (
            "UPDATE $.cluster SET shards = 8",
            "UPDATE $.cluster SET shards = 1",
            "it is laid out for 8 shards, and shards.count is 1: set shards.count = 8, or name another store.schema",
        ),
        ("ALTER TABLE $.items RENAME head TO tail", "ALTER TABLE $.items RENAME tail TO head", "(42703)"),
        ("ALTER TABLE $.shards RENAME wall TO wail", "ALTER TABLE $.shards RENAME wail TO wall", "(42703)"),
        ("ALTER TABLE $.nodes RENAME TO hosts", "ALTER TABLE $.hosts RENAME TO nodes", "(42P01)"),
        ("DELETE FROM $.shards", "INSERT INTO $.shards (shard, identity) VALUES (0, 1)", "`shards` is empty"),
        ("DELETE FROM $.cluster", "INSERT INTO $.cluster VALUES (true, 2, 1)", "`cluster` is empty"),
    ] {
        asked(server, &site, change);
        only_fault(&found(&config), part);
        asked(server, &site, back);
        let mended = found(&config);
        assert_eq!(of_level(&mended, "fail").len(), 0, "{back}: {mended:#?}");
    }
}

#[test]
fn a_clock_that_is_ahead_or_behind_is_told_and_far_is_a_fault() {
    let Some((site, _, config)) = site("pg-check-clock") else { return };
    for (ahead_ms, level, part) in [
        (400, "ok", "agrees with this machine's"),
        (5_000, "warn", "behind this machine's"),
        (-5_000, "warn", "ahead of this machine's"),
        (40_000, "fail", "behind this machine's: with more than 30 s the daemon does not claim the store"),
        (-40_000, "fail", "ahead of this machine's: with more than 30 s the daemon does not claim the store"),
    ] {
        let mut daemon = Daemon::stopped(&config, &site.dir);
        let Some(()) = WallClock::ahead(&mut daemon, ahead_ms) else { return };
        let begun = Instant::now();
        let found = about_the_database(&daemon.cli_there(&CHECK));
        let took_ms = begun.elapsed().as_millis() as i64;
        let text = says(&found, level, part);
        if level != "ok" {
            let told: f64 = text.split(' ').find_map(|word| word.parse().ok()).expect("seconds");
            let off_ms = (told * 1_000.0) as i64 - ahead_ms.abs();
            // A difference within the time of the question counts as 0.
            assert!((-took_ms..=100).contains(&off_ms), "{ahead_ms} in {took_ms}: {text}");
        }
        assert_eq!(of_level(&found, "fail").len(), usize::from(level == "fail"), "{found:#?}");
    }
}

#[test]
fn a_pooler_must_pool_sessions() {
    let Some((site, server, config)) = site("pg-check-pooler") else { return };
    server.sql(&Daemon::stopped(&config, &site.dir).cli(&["schema"]).out);
    for (mode, connections, level, part) in [
        ("transaction", 5, "fail", "a pooler between here and the database does not pool sessions"),
        ("transaction", 1, "fail", "a pooler between here and the database does not pool sessions"),
        ("statement", 5, "fail", "a pooler between here and the database does not pool sessions"),
        ("session", 5, "ok", "has all rights on the tables"),
        ("session", 1, "warn", "connections are used up: no answer within 5 s"),
    ] {
        let Some(pooler) = Pooler::start(server, mode, connections) else { return };
        let config = config.clone().text("store.uri", &pooler.uri());
        let found = found(&config);
        says(&found, level, part);
        let faults = of_level(&found, "fail").len();
        assert_eq!(
            faults,
            usize::from(level == "fail"),
            "{mode} {connections}: {found:#?}\n{}",
            pooler.log()
        );
        if mode == "transaction" {
            // The next client gets the session in order, outside of a transaction.
            let next = self::found(&config);
            says(&next, level, part);
            let left = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
                        AND query LIKE '%tidegate.mark%'";
            // The pooler ends a transaction only after its client has left.
            wait_until("no transaction is left", LIMIT, || server.sql(left) == "0");
        }
    }
}

/// The server logs each wait for a lock that lasts longer than a millisecond.
#[test]
fn a_check_beside_a_serving_daemon_hinders_nothing() {
    // A vacuum that cuts off a table's end can hold the daemon up.
    let conf = "log_lock_waits = on\ndeadlock_timeout = 1ms\nautovacuum = off";
    let Some(server) = Database::own(conf) else { return };
    let site = Site::new("pg-check-beside");
    let config = site.in_database(site.config(), &server);
    site.application("shop");
    let ledger = Ledger::new();
    let recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let daemon = site.start(&config);
    let epoch = asked(&server, &site, "SELECT epoch, claim FROM $.shards");
    let load = site.load(&ledger, 300);
    for n in 1..=10 {
        let arrived = ledger.arrived_count();
        wait_until("some arrive", LIMIT, || ledger.arrived_count() > arrived + 50);
        let found = about_the_database(&daemon.cli(&CHECK));
        assert_eq!(of_level(&found, "fail").len(), 0, "{n}: {found:#?}");
        says(&found, "ok", "the store belongs to ");
    }
    load.stop();
    ledger.settle(LIMIT).assert_clean();
    drop(recorder);
    let state = daemon.state();
    assert_eq!(state["store"]["lives"], 1, "{}", daemon.log_tail());
    assert_eq!(asked(&server, &site, "SELECT epoch, claim FROM $.shards"), epoch, "it is claimed again");
    let log = server.log();
    assert!(!log.contains("still waiting for"), "a lock was waited for:\n{log}");
    // The other way round: a transaction of the daemon that lasts long does not hold up a check.
    let held = server.hold(&format!("SELECT 1 FROM {}.shards FOR UPDATE", site.schema()));
    let found = about_the_database(&daemon.cli(&CHECK));
    assert_eq!(of_level(&found, "fail").len(), 0, "{found:#?}");
    says(&found, "ok", "has all rights on the tables");
    held.release();
}
