//! What makes a connection to a broker a trusted one: the authorities that are believed, and a certificate of
//! one's own.

use super::login::Surroundings;
use super::secret;
use super::section::Section;
use super::units::{Flag, Text, Words};
use std::io::Read;
use std::path::{Path, PathBuf};

/// More than any bundle of certificates; a device given by mistake is not read for ever.
const MAX_PEM_BYTES: u64 = 16 << 20;

/// How a broker behind `amqps://` is known, and what it is shown. The files are read at each connect: what
/// has been renewed holds from the next one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with authorities to trust; `None` = those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Beside those of `ca_file`, the operating system's are trusted.
    pub system_cas: bool,
    /// Shown where the broker asks for one.
    pub own: Option<OwnCertificate>,
}

/// A client certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// PEM file: the certificate, and behind it those that lead to its authority.
    pub certificate_file: PathBuf,
    /// PEM file with the private key, not encrypted.
    pub key_file: PathBuf,
}

/// How tidegate tells the broker who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// User and password (SASL PLAIN).
    #[default]
    Password,
    /// By its certificate (SASL EXTERNAL).
    External,
}

/// The keys of a section that are about this. What it leaves out is as in `d`.
pub(super) fn tls(s: &mut Section<'_, '_>, d: &Tls, credential: &str, around: &Surroundings) -> Tls {
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
pub(super) fn login(s: &mut Section<'_, '_>) -> Login {
    s.get("login", Login::Password, Words(&[("password", Login::Password), ("external", Login::External)]))
}

/// Certificates are public: links are followed, whoever may read. What is in them is judged when the
/// connection is made.
pub(super) fn pem_file(s: &mut Section<'_, '_>, key: &'static str) -> Option<PathBuf> {
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

/// The file that `key_file` names, else systemd's credential, where there is a certificate that it is for.
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
