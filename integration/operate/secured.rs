//! TLS and logins: which certificates tidegate trusts, which ones and which users it presents, and its
//! messages for each fault.

use super::setup::{self, make_accounts};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{wait_until, workdir, Authority, Config, Daemon, Node, Push, Signed, Site, Told};

const PATIENCE: Duration = Duration::from_secs(30);

fn path(file: &Path) -> &str {
    file.to_str().expect("a path of text")
}

fn address(user: &str, port: u16) -> String {
    format!("amqps://{user}:{user}@127.0.0.1:{port}/%2f")
}

fn shows(config: Config, section: &str, own: &Signed) -> Config {
    config
        .text(&format!("{section}.certificate_file"), path(&own.certificate))
        .text(&format!("{section}.key_file"), path(&own.key))
}

/// A request passes through the daemon.
fn works(site: &Site<'_>, daemon: &Daemon, id: &str) {
    let queue = site.queue(id);
    site.client.queue(&queue, FieldTable::default());
    site.client.bind(&queue, &site.out(), id);
    let inbox = site.client.consume(&queue);
    site.client.publish(&Push::new(&site.ingest(), id, "1").id(id));
    assert_eq!(inbox.items(1, PATIENCE).remove(0).id, id, "{}", daemon.log_tail());
}

fn connects(config: &Config, dir: &Path) -> Told {
    Daemon::stopped(config, dir).cli(&["check", "--connect"])
}

#[test]
fn whom_it_does_not_trust_it_does_not_talk_to_and_says_why() {
    let certificates = workdir("certificates");
    let (authority, other) = (Authority::new(&certificates, "ca"), Authority::new(&certificates, "other-ca"));
    let server = authority.server("server", "127.0.0.1");
    let name = "whom_it_does_not_trust_it_does_not_talk_to_and_says_why";
    let Some((node, port)) = Node::with_tls(name, &server, authority.file(), false) else { return };
    let site = Site::on(&node, "trust");
    let trusting = |ca: &Authority| {
        site.config().text("amqp.uri", &address("guest", port)).text("amqp.ca_file", path(ca.file()))
    };
    let foreign = authority.client("nobody");
    let mismatch = Signed { key: server.key.clone(), ..foreign.clone() };
    let by_name = address("guest", port).replace("127.0.0.1", "localhost");
    let no_user = shows(trusting(&authority), "amqp", &foreign).text("amqp.login", "external");
    for (config, sentence) in [
        (trusting(&other), "the CA that has signed the broker's certificate is not in ca_file"),
        (trusting(&authority).unset("amqp.ca_file"), "give its CA as amqp.ca_file"),
        (trusting(&authority).text("amqp.uri", &by_name), "the broker's certificate is not for localhost"),
        (shows(trusting(&authority), "amqp", &mismatch), "nobody.pem: is not the certificate of key_file"),
        (
            shows(trusting(&authority), "amqp", &other.client("stranger")),
            "does not trust the authority of certificate_file",
        ),
        (no_user, "as the user of its certificate on virtual host '/'"),
        (trusting(&authority).text("amqp.uri", &by_name.replace("amqps", "amqp")), "write amqps://"),
    ] {
        let told = connects(&config, &site.dir);
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.err.contains(sentence) || told.out.contains(sentence), "{sentence}: {told:?}");
    }
    let told = connects(&trusting(&authority), &site.dir);
    assert_eq!(told.code, 0, "{told:?}");
}

#[test]
fn by_certificate_at_one_end_and_by_password_at_the_other() {
    let certificates = workdir("certificates");
    let authority = Authority::new(&certificates, "ca");
    let server = authority.server("server", "127.0.0.1");
    let name = "by_certificate_at_one_end_and_by_password_at_the_other";
    let Some((node, port)) = Node::with_tls(name, &server, authority.file(), false) else { return };
    let site = Site::on(&node, "certificate");
    // The first egress address has no listener.
    let uris = format!("[\"amqps://guest:guest@127.0.0.1:1/%2f\", \"{}\"]", address("guest", port));
    let config = shows(site.config(), "amqp", &authority.client("other"))
        .text("amqp.uri", &format!("amqps://127.0.0.1:{port}/%2f"))
        .text("amqp.ca_file", path(authority.file()))
        .text("amqp.login", "external")
        .text("amqp.heartbeat", "7s")
        .text("amqp.frame_max", "64KiB")
        .set("egress.uris", &uris)
        .text("egress.ca_file", path(authority.file()))
        .set("egress.system_cas", "true");
    let daemon = Daemon::start(&config, &site.dir).ready();
    works(&site, &daemon, "certified");
    let columns = ["user", "auth_mechanism", "ssl", "timeout", "frame_max", "client_properties"];
    let listed = node.ctl(&[&["list_connections", "--no-table-headers"][..], &columns].concat());
    let line =
        |end: &str| listed.lines().find(|line| line.contains(end)).unwrap_or_else(|| panic!("{listed}"));
    assert!(line("tidegate ingest").starts_with("other\tEXTERNAL\ttrue\t7\t65536"), "{listed}");
    assert!(line("tidegate egress").starts_with("guest\tPLAIN\ttrue\t7\t65536"), "{listed}");
}

/// Each connection uses a separate certificate, and its user has the permissions from `topology print`.
#[test]
fn certificates_log_in_with_the_least_rights() {
    let certificates = workdir("certificates");
    let authority = Authority::new(&certificates, "ca");
    let server = authority.server("server", "127.0.0.1");
    let name = "certificates_log_in_with_the_least_rights";
    let Some((node, port)) = Node::with_tls(name, &server, authority.file(), true) else { return };
    let site = Site::on(&node, "least");
    let mut config = site.config().text("amqp.ca_file", path(authority.file()));
    for (section, user) in [("amqp", "cert-in"), ("egress", "cert-out")] {
        config = shows(config, section, &authority.client(user))
            .text(&format!("{section}.uri"), &format!("amqps://{user}@127.0.0.1:{port}/%2f"))
            .text(&format!("{section}.login"), "external");
    }
    let daemon = Daemon::stopped(&config, &site.dir);
    let client = make_accounts(&node, &daemon, "/", Node::ctl);
    setup::works(&site, &client, daemon);
}

#[test]
fn what_is_renewed_holds_from_the_next_connection_on() {
    let certificates = workdir("certificates");
    let (old, new) = (Authority::new(&certificates, "old-ca"), Authority::new(&certificates, "new-ca"));
    let server = old.expired("server", "127.0.0.1");
    let name = "what_is_renewed_holds_from_the_next_connection_on";
    // Client certificates are verified with the new authority.
    let Some((node, port)) = Node::with_tls(name, &server, new.file(), true) else { return };
    let site = Site::on(&node, "renewed");
    let trusted = certificates.join("trusted.pem");
    fs::copy(old.file(), &trusted).expect("the trusted authority");
    let anonymous =
        site.config().text("amqp.uri", &address("guest", port)).text("amqp.ca_file", path(&trusted));
    let own = old.client("tidegate");
    let mut daemon = Daemon::start(&shows(anonymous.clone(), "amqp", &own), &site.dir);
    let said = |sentence: &str| {
        wait_until(sentence, PATIENCE, || daemon.log().contains(sentence));
    };
    said("the broker's certificate has expired or is not valid yet");
    // The broker's new certificate is from another authority, which tidegate does not trust yet.
    new.server("server", "127.0.0.1");
    node.eval("ssl:clear_pem_cache().");
    said("the CA that has signed the broker's certificate is not in ca_file");
    fs::copy(new.file(), &trusted).expect("the trusted authority");
    said("does not trust the authority of certificate_file");
    assert!(!daemon.state()["ready"].as_bool().unwrap_or(true), "{}", daemon.state());
    new.client("tidegate");
    daemon.wait_ready();
    works(&site, &daemon, "renewed");
    let told = connects(&anonymous, &workdir("anonymous"));
    assert_eq!(told.code, 1, "{told:?}");
    assert!((told.err + &told.out).contains("give certificate_file and key_file"), "it shows none");
}
