//! A minimal HTTP client for the daemon's admin port: one request per connection, bounded in time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Media type without parameters; empty if there is none.
    pub kind: String,
    /// The whole body.
    pub body: String,
}

/// Longer than the daemon allows for any request (35 s): a walk over many dead letters takes 12 s and more.
const LIMIT: Duration = Duration::from_secs(40);

/// Sends one request, with this token if there is one; `None` without a response.
pub(crate) fn request(
    method: &str,
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> Option<HttpAnswer> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.set_write_timeout(Some(LIMIT)).ok()?;
    let bearer = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{bearer}Content-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().to_owned();
    let chunked = head.contains("transfer-encoding: chunked");
    Some(HttpAnswer { status, kind, body: if chunked { dechunk(body) } else { body.to_owned() } })
}

fn dechunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}
