//! Keys for TLS and logins: which of them belong together, and the faults where one is missing.

use super::{faults, warnings, Dir};
use tidegate_config::{needs_restart, Login};

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\n";

/// A directory with a certificate, its key, and a configuration that may name them as `CERT` and `KEY`.
fn with_files(config: &str) -> Dir {
    let dir = Dir::new("");
    let certificate = dir.file("own.pem", CERTIFICATE, 0o644);
    let key = dir.file("own.key", KEY, 0o600);
    let named = config
        .replace("CERT", certificate.to_str().expect("text"))
        .replace("KEY", key.to_str().expect("text"));
    dir.file("config.toml", &named, 0o600);
    dir
}

#[test]
fn a_login_by_certificate_needs_no_user_and_no_password() {
    let dir = with_files(
        "[amqp]\nuri = \"amqps://broker\"\ncertificate_file = \"CERT\"\nkey_file = \"KEY\"\nlogin = \"external\"\n\
         [egress]\nuris = [\"amqps://out:o@one\", \"amqps://out:o@two\"]\nca_file = \"CERT\"\n",
    );
    let loaded = dir.load(&[]).expect("a configuration");
    assert_eq!(loaded.warnings, []);
    let config = loaded.config;
    let [ingest] = &*config.amqp.endpoints else { panic!("{config:?}") };
    assert_eq!(ingest.login, Login::External);
    assert!(ingest.tls.as_ref().is_some_and(|tls| tls.own.is_some() && tls.ca_file.is_none()));
    let hosts: Vec<&str> = config.egress.endpoints.iter().map(|e| &*e.host).collect();
    assert_eq!(hosts, ["one", "two"]);
    let egress = &config.egress.endpoints[1];
    assert_eq!(egress.login, Login::Password, "a login is not taken over");
    let tls = egress.tls.as_ref().expect("TLS");
    assert!(tls.ca_file.is_some() && tls.own == config.amqp.tls.own, "a certificate is: {tls:?}");
}

#[test]
fn what_lacks_its_other_half_is_refused() {
    for (config, fault) in [
        ("[amqp]\nuri = \"amqps://u:p@h\"\ncertificate_file = \"CERT\"", "certificate_file: needs the key"),
        ("[amqp]\nuri = \"amqps://u:p@h\"\nkey_file = \"KEY\"", "key_file: needs the certificate"),
        (
            "[amqp]\nuri = \"amqps://u:p@h\"\ncertificate_file = \"CERT\"\nkey_file = \"CERT\"",
            "holds no PEM private key",
        ),
        ("[amqp]\nuri = \"amqps://h\"\nlogin = \"external\"", "give certificate_file and key_file"),
        (
            "[amqp]\nuri = \"amqp://h\"\nlogin = \"external\"\ncertificate_file = \"CERT\"\nkey_file = \"KEY\"",
            "amqp.uri: is not amqps://",
        ),
        ("[egress]\nca_file = \"CERT\"", "egress.ca_file: belongs to egress.uri"),
        ("[egress]\nlogin = \"external\"", "egress.login: belongs to egress.uri"),
        ("[egress]\nuri = \"amqp://h\"\nuris = [\"amqp://h\"]", "give either `uri` or `uris`"),
        ("[amqp]\nframe_max = \"1KiB\"", "amqp.frame_max"),
    ] {
        let found = with_files(config).load(&[]).expect_err(config).to_string();
        assert!(found.contains(fault) && found.lines().count() == 1, "{config}:\n{found}");
    }
    assert!(faults("amqp.login = \"anonymous\"").contains("is not one of \"password\", \"external\""));
}

#[test]
fn what_has_no_effect_is_said() {
    for (config, part) in [
        (
            "[amqp]\ncertificate_file = \"CERT\"\nkey_file = \"KEY\"",
            "amqp.certificate_file: has no effect: no address begins with amqps://",
        ),
        ("[amqp]\nuri = \"amqps://u:p@h\"\nsystem_cas = true", "amqp.system_cas: has no effect"),
        (
            "[amqp]\nuri = \"amqps://u:p@h\"\nlogin = \"external\"\ncertificate_file = \"CERT\"\nkey_file = \"KEY\"",
            "has a password that is not used",
        ),
    ] {
        let found = warnings(&with_files(config), &[]);
        assert!(found.contains(part) && found.lines().count() == 1, "{config}: {found}");
    }
}

#[test]
fn a_password_that_was_rotated_in_its_file_waits_for_no_restart() {
    let dir = with_files("");
    let password = dir.file("password", "first", 0o600);
    let config = format!(
        "[amqp]\nuri = \"amqps://u@h\"\npassword_file = {:?}\nca_file = {:?}",
        password.to_str().expect("text"),
        dir.file("ca.pem", CERTIFICATE, 0o644).to_str().expect("text"),
    );
    dir.file("config.toml", &config, 0o600);
    let old = dir.load(&[]).expect("a configuration").config;
    dir.file("password", "second", 0o600);
    let new = dir.load(&[]).expect("a configuration").config;
    assert!(needs_restart(&old, &new).is_empty(), "{:?}", needs_restart(&old, &new));
    let mut other = new.clone();
    other.amqp.frame_max = 16 << 10;
    other.amqp.tls = std::sync::Arc::default();
    other.egress.tls = std::sync::Arc::default();
    assert_eq!(needs_restart(&new, &other), ["amqp.ca_file", "amqp.frame_max"]);
}
