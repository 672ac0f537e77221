//! Trust settings of a connection to a broker: trusted authorities, and tidegate's own certificate.

use super::secret;
use super::section::Section;
use super::surroundings::Surroundings;
use super::units::{Flag, Text, Words};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Larger than any bundle of certificates; a device given by mistake is not read without end.
const MAX_PEM_BYTES: u64 = 16 << 20;

/// The trust settings for a broker behind `amqps://`. The files are read at each connect, so a renewed file
/// applies from the next one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with trusted authorities; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Trusts the authorities of the operating system beside those of `ca_file`.
    pub system_cas: bool,
    /// The certificate to show if the broker asks for one.
    pub own: Option<OwnCertificate>,
}

/// A client certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// PEM file with the certificate, followed by those up to its authority.
    pub certificate_file: PathBuf,
    /// PEM file with the private key, not encrypted.
    pub key_file: PathBuf,
}

/// How tidegate authenticates at the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// User and password (SASL PLAIN).
    #[default]
    Password,
    /// Certificate (SASL EXTERNAL).
    External,
}

/// Reads a section's keys for TLS. A key that is absent has the value of `d`.
pub(crate) fn tls(s: &mut Section<'_, '_>, d: &Tls, credential: &str, around: &Surroundings) -> Tls {
    let ca_file = pem_file(s, "ca_file");
    let system_cas = s.get("system_cas", ca_file.is_none() && d.system_cas, Flag);
    if system_cas && s.is_set("system_cas") && ca_file.is_none() && d.ca_file.is_none() {
        s.warn("system_cas", "has no effect: without ca_file the operating system's authorities are trusted");
    }
    let certificate_file = pem_file(s, "certificate_file");
    let key_file = key_file(s, credential, certificate_file.is_some(), around);
    let own = match (certificate_file, key_file) {
        (Some(certificate_file), Some(key_file)) => Some(OwnCertificate { certificate_file, key_file }),
        (Some(_), None) if !s.failed(&["key_file"]) => {
            s.fault("certificate_file", "needs the key of that certificate: give key_file");
            None
        }
        (None, Some(_)) if !s.failed(&["certificate_file"]) => {
            s.fault("key_file", "needs the certificate of that key: give certificate_file");
            None
        }
        (Some(_), None) | (None, Some(_)) => None,
        (None, None) => d.own.clone(),
    };
    Tls { ca_file: ca_file.or_else(|| d.ca_file.clone()), system_cas, own }
}

/// The key `login` of a section.
pub(crate) fn login(s: &mut Section<'_, '_>) -> Login {
    s.get("login", Login::Password, Words(&[("password", Login::Password), ("external", Login::External)]))
}

/// Certificates are public: links are followed, and the mode does not matter. Their content is checked at the
/// connect.
pub(crate) fn pem_file(s: &mut Section<'_, '_>, key: &'static str) -> Option<PathBuf> {
    let path = s.get(key, String::new(), Text);
    if path.is_empty() {
        return None;
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(Path::new(&path));
    if let Err(e) = file.and_then(|f| f.take(MAX_PEM_BYTES).read_to_end(&mut text)) {
        s.fault(key, format!("{path} cannot be read: {e}"));
    } else if !String::from_utf8_lossy(&text).contains("-----BEGIN CERTIFICATE-----") {
        s.fault(key, format!("{path} holds no PEM certificate"));
    }
    Some(path.into())
}

/// The file that `key_file` names, or else systemd's credential if there is a certificate to go with it.
fn key_file(
    s: &mut Section<'_, '_>,
    credential: &str,
    has_certificate: bool,
    around: &Surroundings,
) -> Option<PathBuf> {
    let named = s.get("key_file", String::new(), Text);
    let credential = around.credentials.as_ref().map(|dir| dir.join(credential)).filter(|p| p.exists());
    let path = match credential {
        _ if !named.is_empty() => named.into(),
        Some(credential) if has_certificate => credential,
        Some(_) | None => return None,
    };
    match secret::read_key(&path) {
        Ok(key) => secret::warn_of(s, "key_file", &path, &key),
        Err(text) => s.fault("key_file", text),
    }
    Some(path)
}
