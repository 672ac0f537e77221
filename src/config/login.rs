//! Addresses and logins: `amqp.uri`, `amqp.uris`, `egress.uri`, and the files that secrets come from.
//!
//! No secret reaches a fault or a warning.

use super::finding::Location;
use super::secret;
use super::section::{Findings, Section};
use super::terms::is_loopback_host;
use super::units::{Span, Text, Words};
use super::uri;
use super::{AmqpConfig, Endpoint, Topology};
use secrecy::{ExposeSecret, SecretString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More than any bundle of certificates; a device given by mistake is not read for ever.
const MAX_CA_BYTES: u64 = 16 << 20;

/// Upper bound on the heartbeat: a dead connection is noticed after about two of them.
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(600);

/// What is known of the world outside the file.
#[derive(Default)]
pub(super) struct Surroundings {
    /// The file may be read by others than its owner.
    pub file_exposed: bool,
    /// Where systemd puts credentials.
    pub credentials: Option<PathBuf>,
}

/// `[amqp]`, but for what other sections have to do with it.
pub(super) fn amqp(s: &mut Section<'_, '_>, around: &Surroundings) -> AmqpConfig {
    let d = AmqpConfig::default();
    let uri = s.get("uri", String::new(), Text);
    let uris = s.list("uris", || Text);
    let mut texts: Vec<(Location, String, String)> = Vec::new();
    // A variable takes the place of what the file says, whichever of the two keys that is.
    let file = |place| matches!(place, Location::File { .. });
    let both = s.is_set("uri") && s.is_set("uris");
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
    } else if s.is_set("uri") && !s.failed(&["uri"]) {
        texts.push((s.place("uri"), s.path_of("uri"), uri));
    }
    let password = secret_of(s, "password_file", "amqp-password", around);
    let mut endpoints: Vec<Endpoint> = texts
        .iter()
        .filter_map(|(place, key, text)| endpoint(place, key, text, &password, s.findings(), around))
        .collect();
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
        s.fault("heartbeat", "is not a whole number of seconds, which is what the protocol knows");
    }
    AmqpConfig { endpoints, topology, ca_file: ca_file(s), heartbeat }
}

/// Addresses of the publishing connection.
pub(super) fn egress_endpoints(
    s: &mut Section<'_, '_>,
    amqp: &AmqpConfig,
    around: &Surroundings,
) -> Vec<Endpoint> {
    let uri = s.get("uri", String::new(), Text);
    if uri.is_empty() {
        if !s.get("password_file", String::new(), Text).is_empty() {
            s.fault("password_file", "belongs to egress.uri, which is empty: use amqp.password_file");
        }
        return amqp.endpoints.clone();
    }
    let password = secret_of(s, "password_file", "egress-password", around);
    let (place, key) = (s.place("uri"), s.path_of("uri"));
    let own = endpoint(&place, &key, &uri, &password, s.findings(), around);
    own.map_or_else(|| amqp.endpoints.clone(), |e| vec![e])
}

/// A secret from outside the URI.
pub(super) enum Password {
    None,
    /// With the file that it was read from.
    Given(SecretString, PathBuf),
    /// There should be one, and a fault says why there is none.
    Failed,
}

/// The text of the file that `key` names, else of systemd's credential of this name.
pub(super) fn secret_of(
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
            if secret.exposed {
                s.warn(key, format!("{} may be read by every user: chmod o= it", path.display()));
            }
            if secret.foreign {
                s.warn(key, format!("{} belongs to another user, who may change it", path.display()));
            }
            Password::Given(secret.text, path)
        }
        Err(text) => {
            s.fault(key, text);
            Password::Failed
        }
    }
}

/// One address with its login; `None` where the URI is faulty.
fn endpoint(
    place: &Location,
    key: &str,
    text: &str,
    password: &Password,
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
    let host = &parsed.host;
    let warn = |text: String| findings.warn(place.clone(), key, text);
    let here = is_loopback_host(host);
    if parsed.bare_slash {
        warn("ends in a bare /, which is taken as the vhost /: write /%2f, or leave the slash out".into());
    }
    if parsed.user.is_none() && !here {
        warn(format!(
            "names no user for {host}: guest is taken, whom RabbitMQ lets in only from its own machine"
        ));
    }
    if !parsed.tls && !here {
        warn(format!(
            "sends password and payloads to {host} unencrypted: use amqps:// unless the network is trusted"
        ));
    }
    let guest = |p: &SecretString| parsed.user.as_deref() == Some("guest") && p.expose_secret() == "guest";
    if let Some(literal) = &parsed.password {
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
        (Password::None, None) if parsed.user.is_none() => "guest".to_owned().into(),
        (Password::None, None) => {
            let text = "names a user and no password: add it (user:password@), or use password_file";
            findings.fault(place.clone(), key, text);
            return None;
        }
    };
    let user = parsed.user.unwrap_or_else(|| "guest".into());
    Some(Endpoint {
        tls: parsed.tls,
        host: parsed.host,
        port: parsed.port,
        vhost: parsed.vhost,
        user,
        password,
        password_file,
    })
}

fn ca_file(s: &mut Section<'_, '_>) -> Option<PathBuf> {
    let path = s.get("ca_file", String::new(), Text);
    if path.is_empty() {
        return None;
    }
    let mut text = Vec::new();
    // Certificates are public: links are followed. What is in them is judged when the connection is made.
    let read =
        std::fs::File::open(Path::new(&path)).and_then(|f| f.take(MAX_CA_BYTES).read_to_end(&mut text));
    if let Err(e) = read {
        s.fault("ca_file", format!("{path} cannot be read: {e}"));
    } else if !String::from_utf8_lossy(&text).contains("-----BEGIN CERTIFICATE-----") {
        s.fault("ca_file", format!("{path} holds no PEM certificate"));
    }
    Some(path.into())
}
