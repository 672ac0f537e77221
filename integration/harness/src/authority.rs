//! Certificates generated for one test and removed with its directory.

use rcgen::{
    date_time_ymd, BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use std::fs;
use std::path::{Path, PathBuf};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    file: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The PEM files of a certificate and its private key.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, readable by its owner only.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority with this name. Its certificate, and later those that it signs, are written to
    /// `dir`.
    pub fn new(dir: &Path, name: &str) -> Authority {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let file = dir.join(format!("{name}.pem"));
        fs::write(&file, certificate.pem()).expect("the authority's file");
        Authority { dir: dir.to_owned(), file, issuer: Issuer::new(params, key) }
    }

    /// The PEM file of its certificate.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A certificate for a server at this IP address.
    pub fn server(&self, name: &str, address: &str) -> Signed {
        self.sign(name, server(name, address))
    }

    /// An expired certificate.
    pub fn expired(&self, name: &str, address: &str) -> Signed {
        let mut params = server(name, address);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(name, params)
    }

    /// A certificate for a client; `name` is its common name.
    pub fn client(&self, name: &str) -> Signed {
        let mut params = named(name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let certificate: Certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let signed = Signed {
            certificate: self.dir.join(format!("{name}.pem")),
            key: self.dir.join(format!("{name}.key")),
        };
        fs::write(&signed.certificate, certificate.pem()).expect("the certificate's file");
        fs::write(&signed.key, key.serialize_pem()).expect("the key's file");
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&signed.key, owner_only).expect("the key's mode");
        signed
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
    params
}

fn server(name: &str, address: &str) -> CertificateParams {
    let mut params = CertificateParams::new([address.to_owned()]).expect("an address");
    params.distinguished_name = named(name).distinguished_name;
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}
