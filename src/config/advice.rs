//! What to do about a connection that failed, chosen by the error's text; pure.
//!
//! TLS libraries name what they met, not what is wrong with the configuration. These are the cases in which
//! the text leaves no doubt; for all others there is no advice.

/// The error's own text, with the advice behind it where there is one. `tls`: the address begins with
/// amqps://.
pub(crate) fn explained(error: String, tls: bool) -> String {
    match advice(&error, tls) {
        Some(advice) => format!("{error}: {advice}"),
        None => error,
    }
}

/// One sentence that says what to change.
fn advice(error: &str, tls: bool) -> Option<&'static str> {
    let says = |word: &str| error.contains(word);
    if tls {
        // What the broker says of tidegate's certificate.
        if says("received fatal alert") {
            if says("CertificateRequired") || says("HandshakeFailure") {
                return Some(
                    "the broker asks for a client certificate: give certificate_file and key_file, signed by \
                     an authority that the broker trusts",
                );
            }
            if says("CertificateExpired") {
                return Some(
                    "certificate_file holds a certificate that has expired, or the broker's clock is wrong",
                );
            }
            if says("UnknownCA") || says("BadCertificate") || says("CertificateUnknown") {
                return Some(
                    "the broker does not trust the authority of the certificate in certificate_file",
                );
            }
        }
        if says("CaUsedAsEndEntity") {
            return Some(
                "the broker shows a CA certificate as its own: have that CA sign a server certificate for \
                 the broker, and keep the CA in amqp.ca_file",
            );
        }
        if says("InvalidContentType") || says("InvalidMessage") || says("corrupt message") {
            return Some(
                "the broker does not speak TLS on this port: write amqp://, or its TLS port (usually 5671)",
            );
        }
        if says("UnknownIssuer") {
            return Some(
                "no trusted CA has signed the broker's certificate: give its CA as amqp.ca_file, or \
                 egress.ca_file",
            );
        }
        if says("not valid for name") || says("not valid for any names") {
            return Some(
                "the broker's certificate is for another name: write the name that it is for in the address",
            );
        }
        if says("certificate expired") || says("certificate not valid yet") {
            return Some(
                "the broker's certificate has expired or is not valid yet, or this machine's clock is wrong",
            );
        }
        return None;
    }
    // What answers with a TLS alert instead of an AMQP frame.
    let is_alert =
        says("frame of the broker cannot be parsed") || says("ParsingError") || says("ParserError");
    is_alert
        .then_some("perhaps this is the broker's TLS port: write amqps://, or the plain port (usually 5672)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_no_doubt_has_advice() {
        for (error, tls, wants) in [
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", true, "server certificate"),
            ("received corrupt message of type InvalidContentType", true, "write amqp://"),
            ("invalid peer certificate: UnknownIssuer", true, "amqp.ca_file"),
            (
                "invalid peer certificate: certificate not valid for name \"b\"; certificate is",
                true,
                "another name",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 1",
                true,
                "or this machine's clock",
            ),
            ("received fatal alert: CertificateRequired", true, "give certificate_file and key_file"),
            ("received fatal alert: CertificateExpired", true, "a certificate that has expired"),
            ("received fatal alert: UnknownCA", true, "does not trust the authority"),
            ("a frame of the broker cannot be parsed", false, "write amqps://"),
        ] {
            assert!(advice(error, tls).is_some_and(|text| text.contains(wants)), "{error}");
        }
        for (error, tls) in
            [("connection refused", false), ("connection refused", true), ("UnknownIssuer", false)]
        {
            assert_eq!(advice(error, tls), None, "{error}");
        }
    }
}
