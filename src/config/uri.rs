//! AMQP URIs, parsed strictly. No error quotes any part of one: what looks like a port may be half a
//! password.
//!
//! Deliberately absent: query parameters. What they set in other clients is either a key of this
//! configuration or fixed.

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use std::net::Ipv6Addr;

/// The parts of one URI.
pub(crate) struct Uri {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub vhost: String,
    pub user: Option<String>,
    pub password: Option<SecretString>,
    /// It ends in a bare `/`, which some clients read as the virtual host with the empty name.
    pub bare_slash: bool,
}

/// Characters that must be encoded in a user name or a password.
const ENCODE: &str =
    "in a user name or password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25";

/// Query parameters of other clients; only these are named in an error.
const PARAMETERS: [&str; 16] = [
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "channel_max",
    "connection_timeout",
    "depth",
    "fail_if_no_peer_cert",
    "frame_max",
    "heartbeat",
    "idle_time_out",
    "keyfile",
    "locale",
    "password",
    "server_name_indication",
    "tls_versions",
    "verify",
];

/// Reads a URI: `amqp[s]://[user[:password]@]host[:port][/vhost]`.
pub(crate) fn parse(text: &str) -> Result<Uri, String> {
    if text.is_empty() {
        return Err("is empty: write amqp://user@host/vhost".into());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("holds a space or a control character".into());
    }
    let (scheme, rest) = text.split_once("://").ok_or("is not a URI: write amqp://user@host/vhost")?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "amqp" => false,
        "amqps" => true,
        _ => return Err("begins with neither amqp:// nor amqps://".into()),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (login, address) = match authority.rsplit_once('@') {
        Some((login, address)) => (Some(login), address),
        None => (None, authority),
    };
    let (host, port) = address_of(address, if tls { 5671 } else { 5672 })?;
    let (vhost, bare_slash) = vhost_of(tail)?;
    let (user, password) = login.map_or(Ok((None, None)), login_of)?;
    Ok(Uri { tls, host, port, vhost, user, password, bare_slash })
}

/// Host and port of an address; `usual` is the default port.
pub(crate) fn address_of(text: &str, usual: u16) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) =
            rest.split_once(']').ok_or("opens a bracket before the host and does not close it")?;
        host.parse::<Ipv6Addr>().map_err(|_| "has something other than an IPv6 address in brackets")?;
        (host, port)
    } else {
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        if port.matches(':').count() > 1 {
            return Err(format!(
                "has more than one colon after the host: an IPv6 address is written [::1]; {ENCODE}"
            ));
        }
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if host.is_empty() {
            return Err("names no host".into());
        }
        if host.len() > 253 || !host.bytes().all(named) {
            return Err(format!("has a host that is neither a name nor an address; {ENCODE}"));
        }
        (host, port)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => return Ok((host.to_owned(), usual)),
        None => return Err("has something other than a port after the host".into()),
        Some(digits) => digits,
    };
    // `u16::from_str` would accept a plus sign.
    let number = if port.bytes().all(|b| b.is_ascii_digit()) { port.parse().unwrap_or(0) } else { 0 };
    if number == 0 {
        return Err(format!("has a port that is not a number from 1 to 65535; {ENCODE}"));
    }
    Ok((host.to_owned(), number))
}

/// The virtual host, and whether the path was a bare slash.
fn vhost_of(tail: &str) -> Result<(String, bool), String> {
    if tail.contains('@') {
        // The password contains a slash or a question mark: the rest may belong to it.
        return Err(format!("has an @ after the host; {ENCODE}"));
    }
    if tail.contains('#') {
        return Err("has a part after #, which means nothing here".into());
    }
    let (path, query) = tail.split_once('?').map_or((tail, None), |(p, q)| (p, Some(q)));
    if let Some(query) = query {
        let named = |name: &&str| PARAMETERS.contains(name);
        let names: Vec<&str> =
            query.split('&').map(|p| p.split_once('=').map_or(p, |(n, _)| n)).filter(named).collect();
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        return Err(format!(
            "has query parameters{names}, which are not supported: see [timeouts] and amqp.ca_file"
        ));
    }
    match path.strip_prefix('/') {
        None => Ok(("/".into(), false)),
        Some("") => Ok(("/".into(), true)),
        Some(name) if name.contains('/') => {
            Err("has a second / after the host: in a vhost write it as %2f".into())
        }
        Some(name) => Ok((decode(name, "vhost")?, false)),
    }
}

/// User and password, if present.
pub(crate) fn login_of(login: &str) -> Result<(Option<String>, Option<SecretString>), String> {
    let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
    if login.contains(['@', '[', ']']) {
        return Err(format!("has a user name or password that is not percent-encoded: {ENCODE}"));
    }
    if user.is_empty() {
        return Err("has an empty user name".into());
    }
    let user = decode(user, "user name")?;
    let password = match password {
        None | Some("") => None,
        Some(p) => Some(decode(p, "password")?.into()),
    };
    Ok((Some(user), password))
}

/// Percent-decodes strictly, unlike browsers.
pub(crate) fn decode(text: &str, what: &str) -> Result<String, String> {
    for (at, _) in text.match_indices('%') {
        if !text.as_bytes().get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
            return Err(format!("has a % in its {what} without two hex digits after it: {ENCODE}"));
        }
    }
    let decoded =
        percent_decode_str(text).decode_utf8().map_err(|_| format!("has a {what} that is not UTF-8"))?;
    if decoded.contains('\0') || decoded.len() > 255 {
        return Err(format!("has a {what} that holds a zero byte or is longer than 255 bytes"));
    }
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    /// The parts `tls host port vhost user password`, or the error.
    fn shown(text: &str) -> String {
        match parse(text) {
            Err(e) => e,
            Ok(u) => {
                let password = u.password.as_ref().map_or("-", |p| p.expose_secret());
                let user = u.user.as_deref().unwrap_or("-");
                let slash = if u.bare_slash { " slash" } else { "" };
                format!("{} {} {} {} {user} {password}{slash}", u.tls, u.host, u.port, u.vhost)
            }
        }
    }

    #[test]
    fn parts() {
        for (text, parts) in [
            ("amqp://guest:guest@127.0.0.1:5672/%2f", "false 127.0.0.1 5672 / guest guest"),
            ("amqp://h", "false h 5672 / - -"),
            ("amqps://h", "true h 5671 / - -"),
            ("AMQPS://h:1/v", "true h 1 v - -"),
            ("amqp://h/", "false h 5672 / - - slash"),
            ("amqp://u@h/%2F", "false h 5672 / u -"),
            ("amqp://u:@h/a%20b", "false h 5672 a b u -"),
            ("amqp://u%40x:p%3A%2f%25%C3%BC@h_1.example/v", "false h_1.example 5672 v u@x p:/%ü"),
            ("amqp://u:p:q@h/v", "false h 5672 v u p:q"),
            ("amqp://u:p@[::1]/v", "false ::1 5672 v u p"),
            ("amqps://[2001:db8::7]:5999", "true 2001:db8::7 5999 / - -"),
        ] {
            assert_eq!(shown(text), parts, "{text}");
        }
    }

    #[test]
    fn faults_say_what_and_show_nothing() {
        for (text, part) in [
            ("", "is empty"),
            ("canary", "is not a URI"),
            ("http://canary@h", "neither amqp:// nor amqps://"),
            ("amqp://", "names no host"),
            ("amqp://u:canary@", "names no host"),
            ("amqp://u:canary@/v", "names no host"),
            ("amqp://::1/canary", "IPv6 address is written [::1]"),
            ("amqp://:5672/canary", "names no host"),
            ("amqp://fe80::1/canary", "IPv6 address is written [::1]"),
            ("amqp://[::1/canary", "does not close it"),
            ("amqp://[canary]/v", "IPv6"),
            ("amqp://[fe80::1%25eth0]/v", "IPv6"),
            ("amqp://[::1]canary/v", "than a port"),
            ("amqp://u:canary/x@h", "port that is not a number"),
            ("amqp://u:123/canary@h", "an @ after the host"),
            ("amqp://u:123?canary@h", "an @ after the host"),
            ("amqp://u:can@ary@h", "not percent-encoded"),
            ("amqp://:canary@h", "empty user name"),
            ("amqp://@h/canary", "empty user name"),
            ("amqp://u:canary%@h", "two hex digits"),
            ("amqp://u:canary%2@h", "two hex digits"),
            ("amqp://u:canary%g0@h", "two hex digits"),
            ("amqp://u:canary%2é@h", "two hex digits"),
            ("amqp://u:canary%ff@h", "password that is not UTF-8"),
            ("amqp://u:canary%00@h", "zero byte"),
            ("amqp://h:0/canary", "from 1 to 65535"),
            ("amqp://h:/canary", "from 1 to 65535"),
            ("amqp://h:+5672/canary", "from 1 to 65535"),
            ("amqp://h:65536/canary", "from 1 to 65535"),
            ("amqp://h%2e/canary", "neither a name nor an address"),
            ("amqp://h/a/canary", "second /"),
            ("amqp://h/v#canary", "after #"),
            ("amqp://h/v?heartbeat=5&canary=1&frame_max=3", "(heartbeat, frame_max)"),
            ("amqp://h?canary", "has query parameters, which"),
            ("amqp://h/v canary", "space"),
            ("amqp://h/v\ncanary", "control character"),
        ] {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text} was taken"));
            assert!(error.contains(part), "{text}: {error}");
            for secret in ["canary", "ary@", "can@"] {
                assert!(!error.contains(secret), "{text}: {error}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(amqps?://)?\\PC{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn every_login_survives_encoding(
            user in "\\PC{1,20}",
            password in "\\PC{1,20}",
            vhost in "\\PC{1,20}",
        ) {
            use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
            let encode = |t: &str| utf8_percent_encode(t, NON_ALPHANUMERIC).to_string();
            let uri = format!("amqp://{}:{}@h/{}", encode(&user), encode(&password), encode(&vhost));
            let parsed = parse(&uri).unwrap();
            prop_assert_eq!(parsed.user, Some(user));
            let read = parsed.password.unwrap();
            prop_assert_eq!(read.expose_secret(), password);
            prop_assert_eq!(parsed.vhost, vhost);
        }
    }
}
