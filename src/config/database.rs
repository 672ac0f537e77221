//! The database that holds the store: its URI, parsed strictly, and the keys beside it.
//!
//! The URI has the form that other clients of PostgreSQL use. Of their parameters, those with a meaning here
//! are known; every other one is a fault. An error quotes no part of a URI except names of parameters.

use super::login::{secret_of, Password};
use super::section::Section;
use super::surroundings::Surroundings;
use super::terms::is_loopback_host;
use super::tls::pem_file;
use super::units::{Flag, Span, Text};
use super::uri::{address_of, decode, login_of};
use super::{DatabaseConfig, Location};
use secrecy::SecretString;
use std::path::PathBuf;
use std::time::Duration;

/// The schema if no other one is named.
pub const USUAL_SCHEMA: &str = "tidegate";
/// Bytes of an identifier that PostgreSQL keeps.
const MAX_IDENTIFIER: usize = 63;
const USUAL_PORT: u16 = 5432;
/// Shortest and longest lease; a slow commit would outlast a shorter one.
const LEASES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));
const USUAL_LEASE: Duration = Duration::from_secs(10);
const EXAMPLE: &str = "postgres://user@host/database?sslmode=require";

/// The parts of one URI.
#[derive(Debug, Default)]
struct DatabaseUri {
    hosts: Vec<(String, u16)>,
    user: String,
    password: Option<SecretString>,
    database: String,
    /// `None`: the URI does not specify it.
    tls: Option<bool>,
    ca_file: Option<PathBuf>,
}

/// Reads the keys of `[store]` about the database; `None` if it is not used, or faulty.
pub(crate) fn database(
    s: &mut Section<'_, '_>,
    is_wanted: bool,
    around: &Surroundings,
) -> Option<DatabaseConfig> {
    let text = s.get("uri", String::new(), Text);
    let password = secret_of(s, "password_file", "store-password", around);
    let ca_file = pem_file(s, "ca_file");
    let schema = s.get("schema", USUAL_SCHEMA.to_owned(), Text);
    let lease = s.get("lease", USUAL_LEASE, Span(LEASES.0..=LEASES.1));
    let allow_async = s.get("allow_async", false, Flag);
    if !is_wanted {
        for (key, is_given) in [("uri", !text.is_empty()), ("ca_file", ca_file.is_some())] {
            if is_given {
                s.warn(key, "has no effect: store.kind is not \"postgres\"");
            }
        }
        return None;
    }
    if !is_identifier(&schema) && !s.failed(&["schema"]) {
        s.fault(
            "schema",
            "is not a plain name: at most 63 lower-case letters, digits and _, and neither a digit nor pg_ \
             at the beginning",
        );
    }
    if s.failed(&["uri"]) {
        return None;
    }
    let uri = match parse(&text) {
        Ok(uri) => uri,
        Err(error) => {
            s.fault("uri", error);
            return None;
        }
    };
    let is_near = uri.hosts.iter().all(|(host, _)| host.starts_with('/') || is_loopback_host(host));
    if uri.tls.is_none() && !is_near {
        s.fault(
            "uri",
            "does not say whether the connection is encrypted: add ?sslmode=require (the certificate is \
             checked), or ?sslmode=disable where the network is trusted",
        );
    }
    if uri.tls == Some(true) && uri.hosts.iter().any(|(host, _)| host.starts_with('/')) {
        s.fault("uri", "asks for encryption on a unix socket, which has none: write sslmode=disable");
    }
    let in_file = around.file_exposed && matches!(s.place("uri"), Location::File { .. });
    let (password, password_file) = match password {
        Password::Given(password, path) => {
            if uri.password.is_some() {
                s.warn("uri", "holds a password that is not used: the one of password_file is");
            }
            (Some(password), Some(path))
        }
        Password::None | Password::Failed => {
            if uri.password.is_some() && in_file {
                let text =
                    "holds a password in a file that others may read: use password_file, or chmod 0600";
                s.warn("uri", text);
            }
            (uri.password, None)
        }
    };
    Some(DatabaseConfig {
        hosts: uri.hosts,
        user: uri.user,
        database: uri.database,
        password,
        password_file,
        tls: uri.tls.unwrap_or(false),
        ca_file: ca_file.or(uri.ca_file),
        schema,
        lease,
        allow_async,
    })
}

fn is_identifier(name: &str) -> bool {
    let is_first = |b: u8| b.is_ascii_lowercase() || b == b'_';
    let first = name.bytes().next().is_some_and(is_first);
    let rest = name.bytes().all(|b| is_first(b) || b.is_ascii_digit());
    first && rest && name.len() <= MAX_IDENTIFIER && !name.starts_with("pg_")
}

/// Reads a URI: `postgres://user[:password]@host[:port][,host[:port]..]/database[?parameters]`.
fn parse(text: &str) -> Result<DatabaseUri, String> {
    if text.is_empty() {
        return Err(format!("is empty: write {EXAMPLE}"));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("holds a space or a control character".into());
    }
    let (scheme, rest) = text.split_once("://").ok_or(format!("is not a URI: write {EXAMPLE}"))?;
    if !["postgres", "postgresql"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err("begins with neither postgres:// nor postgresql://".into());
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if tail.contains('@') {
        // The password contains a slash: the rest may belong to it.
        return Err("has an @ after the host: in a password write / as %2F, ? as %3F, # as %23".into());
    }
    let (login, addresses) = authority.rsplit_once('@').ok_or("names no user: write user@host")?;
    let (user, password) = login_of(login)?;
    let mut uri = DatabaseUri { user: user.unwrap_or_default(), password, ..DatabaseUri::default() };
    for address in addresses.split(',') {
        uri.hosts.push(host_of(address)?);
    }
    if tail.contains('#') {
        return Err("has a part after #, which means nothing here".into());
    }
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let name = path.strip_prefix('/').unwrap_or_default();
    if name.is_empty() {
        return Err("names no database: write /database behind the host".into());
    }
    if name.contains('/') {
        return Err("has a second / after the host: in a database's name write it as %2f".into());
    }
    uri.database = decode(name, "database's name")?;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        uri.set(name, &decode(value, "parameter")?)?;
    }
    Ok(uri)
}

/// A host with its port, or the directory of a socket.
fn host_of(address: &str) -> Result<(String, u16), String> {
    let (host, port) = match address.split_once(':') {
        Some((host, port)) if !address.starts_with('[') => (host, Some(port)),
        Some(_) | None => (address, None),
    };
    if !host.to_ascii_lowercase().starts_with("%2f") {
        return address_of(address, USUAL_PORT);
    }
    let (_, port) =
        port.map_or(Ok((String::new(), USUAL_PORT)), |port| address_of(&format!("s:{port}"), 0))?;
    Ok((decode(host, "host")?, port))
}

impl DatabaseUri {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("sslmode", "disable") => self.tls = Some(false),
            // The certificate and the name in it are always checked.
            ("sslmode", "require" | "verify-ca" | "verify-full") => self.tls = Some(true),
            ("sslmode", _) => {
                return Err(
                    "has an sslmode that may go on without encryption or is unknown: write require, \
                            verify-full or disable"
                        .into(),
                );
            }
            ("sslrootcert", "system") => {}
            ("sslrootcert", path) => self.ca_file = Some(path.into()),
            // The store writes, so no other kind of server is accepted.
            ("target_session_attrs", "read-write" | "primary") => {}
            ("target_session_attrs", _) => {
                return Err("has a target_session_attrs that does not fit: it is always read-write".into());
            }
            _ => {
                let named = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                let name = Some(name).filter(named).map_or(String::new(), |name| format!(" `{name}`"));
                return Err(format!(
                    "has a parameter{name} that is not supported: sslmode, sslrootcert and \
                     target_session_attrs are"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    fn shown(text: &str) -> String {
        match parse(text) {
            Err(error) => error,
            Ok(uri) => {
                let hosts: Vec<_> = uri.hosts.iter().map(|(host, port)| format!("{host} {port}")).collect();
                let password = uri.password.as_ref().map_or("-", |p| p.expose_secret());
                let ca = uri.ca_file.map_or("-".to_owned(), |path| path.display().to_string());
                format!("{} {} {password} {} {:?} {ca}", hosts.join(","), uri.user, uri.database, uri.tls)
            }
        }
    }

    #[test]
    fn parts() {
        for (text, parts) in [
            ("postgres://u@h/d", "h 5432 u - d None -"),
            (
                "postgresql://u:p%40@h:1,i,[::1]:2/d%20e?sslmode=disable",
                "h 1,i 5432,::1 2 u p@ d e Some(false) -",
            ),
            ("postgres://u@h/d?sslmode=verify-full&sslrootcert=/a/b", "h 5432 u - d Some(true) /a/b"),
            ("postgres://u@h/d?sslmode=require&target_session_attrs=primary", "h 5432 u - d Some(true) -"),
            ("postgres://u@%2Frun%2Fpostgresql/d", "/run/postgresql 5432 u - d None -"),
            ("postgres://u@%2frun:99/d", "/run 99 u - d None -"),
        ] {
            assert_eq!(shown(text), parts, "{text}");
        }
    }

    #[test]
    fn faults_say_what_and_show_nothing() {
        for (text, part) in [
            ("", "is empty"),
            ("canary", "is not a URI"),
            ("mysql://u:canary@h/d", "neither postgres://"),
            ("postgres://canary/d", "names no user"),
            ("postgres://u:canary@h", "names no database"),
            ("postgres://u:canary@h/", "names no database"),
            ("postgres://u:canary@h/d/canary", "second / after the host"),
            ("postgres://u:canary@/d", "names no host"),
            ("postgres://u:canary@h,/d", "names no host"),
            ("postgres://u:canary@h:0/d", "from 1 to 65535"),
            ("postgres://u:can/ary@h/d", "an @ after the host"),
            ("postgres://u:1/canary@h/d", "an @ after the host"),
            ("postgres://u:canary@h/d#x", "after #"),
            ("postgres://u:canary@h/d?sslmode=prefer", "may go on without encryption"),
            ("postgres://u:canary@h/d?target_session_attrs=any", "always read-write"),
            ("postgres://u:canary@h/d?options=-c", "`options`"),
            ("postgres://u@h/d?Canary=1", "a parameter that"),
            ("postgres://u:canary%@h/d", "two hex digits"),
        ] {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text} was taken"));
            assert!(error.contains(part) && !error.to_lowercase().contains("canary"), "{text}: {error}");
        }
    }

    #[test]
    fn plain_names_alone_are_schemas() {
        for (name, plain) in [("tidegate", true), ("_t2", true), ("", false), ("2t", false), ("T", false)] {
            assert_eq!(is_identifier(name), plain, "{name}");
        }
        assert!(!is_identifier("pg_x") && !is_identifier(&"x".repeat(64)) && !is_identifier("a\"b"));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(postgres://)?\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}
