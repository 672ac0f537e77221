//! Addresses and logins: `amqp.uri`, `amqp.uris`, `egress.uri`, and the files with secrets.
//!
//! No secret appears in a fault or a warning.

use super::finding::Location;
use super::secret;
use super::section::{Findings, Section};
use super::surroundings::Surroundings;
use super::terms::is_loopback_host;
use super::tls::{self, Login, Tls};
use super::units::{Flag, Size, Span, Text, Words};
use super::uri;
use super::{AmqpConfig, Endpoint, Topology};
use secrecy::{ExposeSecret, SecretString};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest heartbeat; a dead connection is noticed after about two of them.
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(600);

/// Smallest and largest frame. The least is twice what a dead letter's headers add. The most is what the
/// client's parser has stack for, if a whole frame were nested headers.
const FRAME_SIZES: RangeInclusive<u64> = 16 << 10..=128 << 10;

/// Reads `[amqp]`, without the keys that concern other sections, too.
pub(crate) fn amqp(s: &mut Section<'_, '_>, around: &Surroundings) -> AmqpConfig {
    let d = AmqpConfig::default();
    let addresses = addresses(s);
    let password = secret_of(s, "password_file", "amqp-password", around);
    let tls = Arc::new(tls::tls(s, &Tls::default(), "amqp-key", around));
    let login = tls::login(s);
    let mut endpoints = endpoints(s, &addresses, &Means { password: &password, tls: &tls, login }, around);
    if endpoints.is_empty() {
        endpoints = d.endpoints;
        if let Password::Given(p, path) = &password {
            for e in &mut endpoints {
                e.password = p.clone();
                e.password_file = Some(path.clone());
            }
        }
    }
    let words = &[("declare", Topology::Declare), ("passive", Topology::Passive), ("off", Topology::Off)];
    let topology = s.get("topology", d.topology, Words(words));
    let heartbeat = s.get("heartbeat", d.heartbeat, Span(Duration::from_secs(1)..=LONGEST_HEARTBEAT));
    if heartbeat.subsec_nanos() != 0 {
        s.fault("heartbeat", "is not a whole number of seconds, as the protocol requires");
    }
    let frame_max = s.get("frame_max", d.frame_max.into(), Size(FRAME_SIZES)) as u32;
    AmqpConfig { endpoints, topology, tls, heartbeat, frame_max }
}

/// Reads the addresses of the publishing connection, and what is trusted there.
pub(crate) fn egress(
    s: &mut Section<'_, '_>,
    amqp: &AmqpConfig,
    around: &Surroundings,
) -> (Vec<Endpoint>, Arc<Tls>) {
    let mut addresses = addresses(s);
    addresses.retain(|(.., text)| !text.is_empty());
    if addresses.is_empty() && !s.failed(&["uri", "uris"]) {
        for key in ["password_file", "ca_file", "certificate_file", "key_file"] {
            if !s.get(key, String::new(), Text).is_empty() {
                s.fault(key, format!("belongs to egress.uri, which is empty: use amqp.{key}"));
            }
        }
        let system_cas = s.get("system_cas", false, Flag);
        let external = tls::login(s) == Login::External;
        for (key, _) in [("system_cas", system_cas), ("login", external)].into_iter().filter(|(_, set)| *set)
        {
            s.fault(key, format!("belongs to egress.uri, which is empty: use amqp.{key}"));
        }
        return (amqp.endpoints.clone(), Arc::clone(&amqp.tls));
    }
    let password = secret_of(s, "password_file", "egress-password", around);
    let tls = Arc::new(tls::tls(s, &amqp.tls, "egress-key", around));
    let login = tls::login(s);
    let own = endpoints(s, &addresses, &Means { password: &password, tls: &tls, login }, around);
    (if own.is_empty() { amqp.endpoints.clone() } else { own }, tls)
}

/// Each address of `uri` or `uris` as written, with its place and key.
fn addresses(s: &mut Section<'_, '_>) -> Vec<(Location, String, String)> {
    let uri = s.get("uri", String::new(), Text);
    let uris = s.list("uris", || Text);
    let mut texts = Vec::new();
    // A variable replaces what the file contains, under either of the two keys.
    let file = |place| matches!(place, Location::File { .. });
    let has_uri = s.is_set("uri") && !(uri.is_empty() && s.is_set("uris"));
    let both = has_uri && s.is_set("uris");
    let list_wins = both && file(s.place("uri")) && !file(s.place("uris"));
    let text_wins = both && !file(s.place("uri")) && file(s.place("uris"));
    if both && !list_wins && !text_wins {
        let later = if s.place("uris") > s.place("uri") { "uris" } else { "uri" };
        s.fault(later, "give either `uri` or `uris`, not both");
    } else if s.is_set("uris") && !text_wins {
        if uris.as_ref().is_some_and(Vec::is_empty) {
            s.fault("uris", "is empty: give at least one address");
        }
        for (n, (place, text)) in uris.into_iter().flatten().enumerate() {
            texts.push((place, format!("{}[{n}]", s.path_of("uris")), text));
        }
    } else if has_uri && !s.failed(&["uri"]) {
        texts.push((s.place("uri"), s.path_of("uri"), uri));
    }
    texts
}

/// What all addresses of a section share.
struct Means<'a> {
    password: &'a Password,
    tls: &'a Arc<Tls>,
    login: Login,
}

fn endpoints(
    s: &mut Section<'_, '_>,
    addresses: &[(Location, String, String)],
    means: &Means<'_>,
    around: &Surroundings,
) -> Vec<Endpoint> {
    if means.login == Login::External && means.tls.own.is_none() {
        let failed = s.failed(&["certificate_file", "key_file"]);
        if !failed {
            s.fault("login", "\"external\" is a login by certificate: give certificate_file and key_file");
        }
    }
    let found = addresses
        .iter()
        .filter_map(|(place, key, text)| endpoint(place, key, text, means, s.findings(), around));
    found.collect()
}

/// A secret that is not part of the URI.
pub(crate) enum Password {
    None,
    /// The secret, and the file that it was read from.
    Given(SecretString, PathBuf),
    /// A secret was named, and a fault reports why it is missing.
    Failed,
}

/// The content of the file that `key` names, or else of systemd's credential of this name.
pub(crate) fn secret_of(
    s: &mut Section<'_, '_>,
    key: &'static str,
    credential: &str,
    around: &Surroundings,
) -> Password {
    let file = s.get(key, String::new(), Text);
    if s.failed(&[key]) {
        return Password::Failed;
    }
    let credential = around.credentials.as_ref().map(|dir| dir.join(credential)).filter(|p| p.exists());
    let path = match credential {
        Some(credential) if file.is_empty() => credential,
        _ if file.is_empty() => return Password::None,
        Some(credential) => {
            s.warn(key, format!("is used, and the credential {} is not", credential.display()));
            file.into()
        }
        None => file.into(),
    };
    match secret::read(&path) {
        Ok(secret) => {
            secret::warn_of(s, key, &path, &secret);
            Password::Given(secret.text, path)
        }
        Err(text) => {
            s.fault(key, text);
            Password::Failed
        }
    }
}

/// One address with its login; `None` if the URI is faulty.
fn endpoint(
    place: &Location,
    key: &str,
    text: &str,
    means: &Means<'_>,
    findings: &Findings,
    around: &Surroundings,
) -> Option<Endpoint> {
    let parsed = match uri::parse(text) {
        Ok(parsed) => parsed,
        Err(text) => {
            findings.fault(place.clone(), key, text);
            return None;
        }
    };
    let password = means.password;
    let external = means.login == Login::External;
    if external && !parsed.tls {
        let text = "is not amqps://, and login = \"external\" is a login by certificate";
        findings.fault(place.clone(), key, text);
        return None;
    }
    let host = &parsed.host;
    let warn = |text: String| findings.warn(place.clone(), key, text);
    let here = is_loopback_host(host);
    if parsed.bare_slash {
        warn("ends in a bare /, which is taken as the vhost /: write /%2f, or leave the slash out".into());
    }
    if parsed.user.is_none() && !here && !external {
        warn(format!(
            "names no user for {host}: tidegate uses guest, which RabbitMQ accepts only from its own machine"
        ));
    }
    if !parsed.tls && !here {
        warn(format!(
            "sends password and payloads to {host} unencrypted: use amqps:// unless the network is trusted"
        ));
    }
    let guest = |p: &SecretString| parsed.user.as_deref() == Some("guest") && p.expose_secret() == "guest";
    if external && (parsed.password.is_some() || matches!(password, Password::Given(..))) {
        warn("has a password that is not used: login = \"external\" is a login by certificate".into());
    } else if let Some(literal) = &parsed.password {
        if matches!(password, Password::Given(..)) && !guest(literal) {
            warn(
                "holds a password that is not used: the one of password_file or of the credential is".into(),
            );
        }
        if around.file_exposed && matches!(place, Location::File { .. }) && !guest(literal) {
            warn("holds a password in a file that others may read: use password_file, or chmod 0600".into());
        }
    }
    let password_file = match password {
        Password::Given(_, path) => Some(path.clone()),
        Password::None | Password::Failed => None,
    };
    let password = match (password, parsed.password) {
        (Password::Given(p, _), _) => p.clone(),
        (Password::None | Password::Failed, Some(literal)) => literal,
        (Password::Failed, None) => SecretString::default(),
        (Password::None, None) if external => SecretString::default(),
        (Password::None, None) if parsed.user.is_none() => "guest".to_owned().into(),
        (Password::None, None) => {
            let text = "names a user and no password: add it (user:password@), or use password_file";
            findings.fault(place.clone(), key, text);
            return None;
        }
    };
    // Only the broker knows the name of a certificate's user; `topology print` writes this placeholder.
    let user = parsed.user.unwrap_or_else(|| if external { "USER" } else { "guest" }.into());
    Some(Endpoint {
        tls: parsed.tls.then(|| Arc::clone(means.tls)),
        login: means.login,
        host: parsed.host,
        port: parsed.port,
        vhost: parsed.vhost,
        user,
        password,
        password_file,
    })
}
