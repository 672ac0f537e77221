//! Advice on a failed connection, chosen by the error's text; pure.
//!
//! TLS libraries name what they met, and not what is wrong with the configuration. These are the cases in
//! which the text is unambiguous; in all others there is no advice.

use super::{Endpoint, Login, OwnCertificate, Tls};

/// Error texts for a connection that the other side has ended.
const ENDED: [&str; 4] = ["reset by peer", "onnection aborted", "roken pipe", "unexpected end of file"];

/// The error's own text, followed by advice if there is any.
pub fn explained(error: String, endpoint: &Endpoint) -> String {
    match advice(&error, endpoint) {
        Some(advice) => format!("{error}: {advice}"),
        None => error,
    }
}

/// A sentence that names what to change.
fn advice(error: &str, endpoint: &Endpoint) -> Option<String> {
    if endpoint.login == Login::External && error.contains("ACCESS_REFUSED") {
        return Some(
            "the broker has no user with the name that it reads from the certificate: see its \
             ssl_cert_login_from, its plugin rabbitmq_auth_mechanism_ssl and its auth_mechanisms"
                .to_owned(),
        );
    }
    if let Some(tls) = &endpoint.tls {
        // Alerts use the same words about tidegate's certificate.
        return if error.contains("fatal alert") {
            of_own_certificate(error, tls.own.as_ref())
        } else {
            of_broker(error, tls, &endpoint.host).or_else(|| of_silence(error, tls.own.as_ref()))
        };
    }
    of_tls_port(error)
}

/// A TLS port answers plain AMQP with an alert, which is not an AMQP frame, or ends the connection before the
/// alert is read; the outcome depends on timing.
fn of_tls_port(error: &str) -> Option<String> {
    let alert = ["frame of the broker cannot be parsed", "ParsingError", "ParserError"];
    alert.iter().chain(&ENDED).any(|word| error.contains(word)).then(|| {
        "perhaps this is the broker's TLS port: write amqps://, or the plain port (usually 5672)".to_owned()
    })
}

/// Advice if the broker's certificate is not trusted, or there is none.
fn of_broker(error: &str, tls: &Tls, host: &str) -> Option<String> {
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if says(&["CaUsedAsEndEntity"]) {
        return Some(
            "the broker shows a CA certificate as its own: have that CA sign a server certificate for the \
             broker, and keep the CA in ca_file"
                .to_owned(),
        );
    }
    if says(&["InvalidContentType", "InvalidMessage", "corrupt message"]) {
        return Some(
            "the broker does not speak TLS on this port: write amqp://, or its TLS port (usually 5671)"
                .to_owned(),
        );
    }
    if says(&["UnknownIssuer", "BadSignature"]) {
        return Some(match &tls.ca_file {
            None => "no CA that the system trusts has signed the broker's certificate: give its CA as \
                     amqp.ca_file (or egress.ca_file)"
                .to_owned(),
            Some(file) => {
                format!(
                    "the CA that has signed the broker's certificate is not in ca_file {}",
                    file.display()
                )
            }
        });
    }
    if says(&["not valid for name", "not valid for any names"]) {
        return Some(format!(
            "the broker's certificate is not for {host}: use a name in the address that it covers, or have \
             one made for this host"
        ));
    }
    says(&["certificate expired", "certificate not valid yet"]).then(|| {
        "the broker's certificate has expired or is not valid yet, or this machine's clock is wrong"
            .to_owned()
    })
}

/// Advice on an alert about tidegate's certificate, or about its absence.
fn of_own_certificate(error: &str, own: Option<&OwnCertificate>) -> Option<String> {
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    let Some(own) = own else {
        return says(&["CertificateRequired", "HandshakeFailure", "BadCertificate"]).then(|| {
            "the broker asks for a client certificate: give certificate_file and key_file, signed by an \
             authority that the broker trusts"
                .to_owned()
        });
    };
    let file = own.certificate_file.display();
    if says(&["CertificateExpired"]) {
        return Some(format!(
            "the certificate in certificate_file {file} has expired, or the broker's clock is wrong"
        ));
    }
    let doubts = ["UnknownCA", "BadCertificate", "CertificateUnknown", "CertificateRequired", "DecryptError"];
    says(&doubts).then(|| {
        format!(
            "the broker does not trust the authority of certificate_file {file}: it must be in the broker's \
             ssl_options.cacertfile"
        )
    })
}

/// The alert is lost if the broker closes the connection right after it.
fn of_silence(error: &str, own: Option<&OwnCertificate>) -> Option<String> {
    let file = own.filter(|_| ENDED.iter().any(|word| error.contains(word)))?.certificate_file.display();
    Some(format!("perhaps the broker does not trust the authority of certificate_file {file}"))
}

#[cfg(test)]
mod tests {
    use super::super::AmqpConfig;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_leaves_no_doubt_has_advice() {
        let with = |tls: Option<Tls>, login: Login| {
            let plain = AmqpConfig::default().endpoints.remove(0);
            Endpoint { tls: tls.map(Arc::new), login, ..plain }
        };
        let plain = with(None, Login::Password);
        let system = with(Some(Tls::default()), Login::Password);
        let trusting = with(Some(Tls { ca_file: Some("/ca.pem".into()), ..Tls::default() }), Login::Password);
        let own = Some(OwnCertificate { certificate_file: "/own.pem".into(), key_file: "/own.key".into() });
        let external = with(Some(Tls { own, ..Tls::default() }), Login::External);
        for (error, endpoint, wants) in [
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", &system, "server certificate"),
            ("received corrupt message of type InvalidContentType", &system, "write amqp://"),
            ("invalid peer certificate: UnknownIssuer", &system, "amqp.ca_file"),
            ("invalid peer certificate: UnknownIssuer", &trusting, "is not in ca_file /ca.pem"),
            ("certificate not valid for name \"b\"; certificate is only", &system, "is not for 127.0.0.1"),
            ("certificate expired: verification time 1", &system, "or this machine's clock"),
            ("received fatal alert: CertificateRequired", &system, "give certificate_file and key_file"),
            ("received fatal alert: CertificateExpired", &external, "/own.pem has expired"),
            ("received fatal alert: UnknownCA", &external, "authority of certificate_file /own.pem"),
            ("Connection reset by peer (os error 104)", &external, "perhaps the broker does not trust"),
            ("ACCESS_REFUSED - Login was refused", &external, "ssl_cert_login_from"),
            ("a frame of the broker cannot be parsed", &plain, "write amqps://"),
            ("Connection reset by peer (os error 104)", &plain, "write amqps://"),
        ] {
            let told = advice(error, endpoint);
            assert!(told.as_ref().is_some_and(|text| text.contains(wants)), "{error}: {told:?}");
        }
        for (error, endpoint) in [
            ("connection refused", &plain),
            ("connection refused", &system),
            ("UnknownIssuer", &plain),
            ("ACCESS_REFUSED", &system),
            ("Connection reset by peer", &system),
        ] {
            assert_eq!(advice(error, endpoint), None, "{error}");
        }
    }
}
