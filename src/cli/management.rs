//! Reads from RabbitMQ's management HTTP API what AMQP does not report.

use super::output::{plain, Failure};
use base64::prelude::{Engine as _, BASE64_STANDARD};
use percent_encoding::{percent_decode_str, utf8_percent_encode, NON_ALPHANUMERIC};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::time::Duration;
use tidegate_config::{Endpoint, Login};
use ureq::http::Uri;

/// Time limit for connection and answer together: the API is slow while a node of the cluster is down.
const MANAGEMENT_WITHIN: Duration = Duration::from_secs(15);
/// Largest answer; one queue, or the overview of a large cluster, is far smaller.
const MOST_TOLD: u64 = 4 << 20;
const FORM: &str = "--management needs the form http://[USER:PASSWORD@]HOST:15672";

/// The API at one address, with a login.
pub(super) struct Management {
    agent: ureq::Agent,
    /// Scheme, host and port.
    base: String,
    user: String,
    authorization: SecretString,
}

impl Management {
    /// The API at this URL, with the login in it, or else the login of the broker.
    ///
    /// # Errors
    /// Usage: the URL has another form, or no login has a password.
    pub(super) fn at(url: &str, endpoint: &Endpoint) -> Result<Self, Failure> {
        let parsed: Uri = url.parse().map_err(|_| Failure::Usage(FORM.to_owned()))?;
        let authority = parsed.authority().map_or("", |a| a.as_str());
        if parsed.scheme_str() == Some("https") {
            return Err(Failure::Usage(format!(
                "{FORM}: TLS is not supported. Run the check on the broker's machine, or use a tunnel"
            )));
        }
        if parsed.scheme_str() != Some("http") || authority.is_empty() || !matches!(parsed.path(), "" | "/") {
            return Err(Failure::Usage(FORM.to_owned()));
        }
        let (user, password, host) = match authority.rsplit_once('@') {
            Some((login, host)) => {
                let (user, password) =
                    login.split_once(':').ok_or_else(|| Failure::Usage(FORM.to_owned()))?;
                let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
                (decoded(user), SecretString::from(decoded(password)), host)
            }
            None if endpoint.login == Login::External => {
                let text = "a login by certificate has no password to use here";
                return Err(Failure::Usage(format!("{FORM}: {text}")));
            }
            None => (endpoint.user.clone(), endpoint.password.clone(), authority),
        };
        let pair = format!("{user}:{}", password.expose_secret());
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The connection is direct, so that no proxy sees the password.
            .proxy(None)
            .timeout_global(Some(MANAGEMENT_WITHIN))
            .build()
            .new_agent();
        let authorization = format!("Basic {}", BASE64_STANDARD.encode(pair)).into();
        Ok(Management { agent, base: format!("http://{host}"), user, authorization })
    }

    /// The address without the login.
    pub(super) fn place(&self) -> &str {
        &self.base
    }

    /// The document at a path below `/api`; `None` if there is none.
    ///
    /// # Errors
    /// A sentence that names the remedy: no answer, a refusal, or another server.
    pub(super) fn get(&self, segments: &[&str]) -> Result<Option<Value>, String> {
        let encoded = |segment: &&str| utf8_percent_encode(segment, NON_ALPHANUMERIC).to_string();
        let path = segments.iter().map(encoded).collect::<Vec<_>>().join("/");
        let asked = self.agent.get(format!("{}/api/{path}", self.base));
        let asked = asked.header("authorization", self.authorization.expose_secret()).call();
        let mut answer = asked.map_err(|e| format!("no management API answers at {}: {e}", self.base))?;
        match answer.status().as_u16() {
            200 => {
                let value = answer.body_mut().with_config().limit(MOST_TOLD).read_json();
                value.map(Some).map_err(|_| self.other_server())
            }
            404 => Ok(None),
            401 => Err(format!(
                "the management API at {} refuses '{}': the login is wrong, or has no tag. `rabbitmqctl \
                 set_user_tags {} management` sets the tag with the least rights; the URL can contain \
                 another login",
                self.base,
                plain(&self.user),
                plain(&self.user)
            )),
            status => Err(format!("{}: HTTP {status} for /api/{path}", self.other_server())),
        }
    }

    fn other_server(&self) -> String {
        format!("the server at {} is not RabbitMQ's management API", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Config;

    #[test]
    fn the_login_of_the_url_goes_before_that_of_the_broker() {
        let config = Config::default();
        let endpoint = &config.amqp.endpoints[0];
        let own = Management::at("http://ops:a%40b@rabbit.example:15672/", endpoint).map(|m| {
            let told = m.authorization.expose_secret().to_owned();
            (m.base, m.user, told)
        });
        let (base, user, told) = own.unwrap();
        assert_eq!((&*base, &*user), ("http://rabbit.example:15672", "ops"));
        assert_eq!(told, format!("Basic {}", BASE64_STANDARD.encode("ops:a@b")));
        let broker = Management::at("http://127.0.0.1:15672", endpoint).map(|m| m.user);
        assert_eq!(broker.unwrap(), endpoint.user);
        for wrong in ["https://h:15671", "h:15672", "http://", "http://h/api", "http://user@h", "amqp://h"] {
            let failure = Management::at(wrong, endpoint).map(|m| m.base).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{wrong}");
        }
    }
}
