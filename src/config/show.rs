//! The effective configuration: the written values on top of the defaults, as text of the same form, without
//! secrets.

use super::section::Findings;
use super::tree::{Node, Table, Value, PREFIX};
use super::{Config, Faults, Written, SAMPLE};
use std::path::Path;
use toml::de::DeValue;
use toml::Value as Shown;

/// Replaces a password.
const REDACTED: &str = "***";

impl Config {
    /// Every key with its effective value for a file and an environment, as TOML, in alphabetical order.
    /// Passwords in addresses are left out. The files that it names are not shown.
    ///
    /// # Errors
    /// As [`Config::load`]: a faulty configuration is not shown.
    pub fn show(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<String, Faults> {
        let written = Written::read(path, env, PREFIX)?;
        written.judge()?;
        let (tree, _) = written.laid_over(&Findings::default())?;
        let mut all: toml::Table = toml::from_str(SAMPLE).unwrap_or_default();
        lay_over(&mut all, &tree);
        all.iter_mut().for_each(|(key, value)| redact(key, value));
        Ok(toml::to_string(&all).unwrap_or_default())
    }
}

fn lay_over(all: &mut toml::Table, tree: &Table<'_>) {
    // Of the two keys for addresses, the written one applies, and a variable before the file.
    let is_variable = |key| tree.get(key).map(|node| node.text.is_some());
    let beaten = match (is_variable("uri"), is_variable("uris")) {
        (Some(true), Some(false)) | (Some(_), None) => Some("uris"),
        (_, Some(_)) => Some("uri"),
        (None, None) => None,
    };
    beaten.map(|key| all.remove(key));
    for (key, node) in tree.iter().filter(|(key, _)| beaten != Some(key)) {
        let value = match (&node.value, all.get_mut(key), node.text) {
            (Value::Table(inner), Some(Shown::Table(known)), _) => {
                lay_over(known, inner);
                continue;
            }
            (Value::Leaf(DeValue::String(text)), ..) => Shown::String(text.to_string()),
            // A value that looks like a number is text if the key wants text.
            (Value::Leaf(_), Some(Shown::String(_)), Some(text)) => Shown::String(text.to_owned()),
            _ => shown(node),
        };
        all.insert(key.clone(), value);
    }
}

fn shown(node: &Node<'_>) -> Shown {
    match &node.value {
        Value::Table(inner) => {
            Shown::Table(inner.iter().map(|(key, node)| (key.clone(), shown(node))).collect())
        }
        Value::List(list) => Shown::Array(list.iter().map(shown).collect()),
        Value::Leaf(leaf) => of_leaf(leaf),
    }
}

fn of_leaf(leaf: &DeValue<'_>) -> Shown {
    match leaf {
        DeValue::String(text) => Shown::String(text.to_string()),
        DeValue::Integer(number) => {
            let read = i64::from_str_radix(number.as_str(), number.radix());
            read.map_or_else(|_| Shown::String(number.as_str().to_owned()), Shown::Integer)
        }
        DeValue::Float(number) => {
            let read = number.as_str().parse();
            read.map_or_else(|_| Shown::String(number.as_str().to_owned()), Shown::Float)
        }
        DeValue::Boolean(flag) => Shown::Boolean(*flag),
        DeValue::Datetime(at) => Shown::Datetime(*at),
        // They are nodes of the tree and do not occur here.
        DeValue::Array(_) | DeValue::Table(_) => Shown::Boolean(false),
    }
}

fn redact(key: &str, value: &mut Shown) {
    match value {
        Shown::Table(table) => table.iter_mut().for_each(|(key, value)| redact(key, value)),
        Shown::Array(list) => list.iter_mut().for_each(|value| redact(key, value)),
        Shown::String(text) if matches!(key, "uri" | "uris") => {
            if let Some(without) = without_password(text) {
                *text = without;
            }
        }
        Shown::String(_) | Shown::Integer(_) | Shown::Float(_) | Shown::Boolean(_) | Shown::Datetime(_) => {}
    }
}

/// `amqp://user:password@host` with the password redacted; `None` if there is none.
fn without_password(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once("://")?;
    let authority = rest.find(['/', '?', '#']).map_or(rest, |end| &rest[..end]);
    let (login, _) = authority.rsplit_once('@')?;
    let (user, _) = login.split_once(':')?;
    Some(format!("{scheme}://{user}:{REDACTED}{}", &rest[login.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str, env: &[(&str, &str)]) -> Result<String, Faults> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let env: Vec<(String, String)> =
            env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Config::show(Some(&path), env.into_iter())
    }

    #[test]
    fn what_was_written_lies_over_the_defaults() {
        let text = show(
            "[amqp]\nuris = [\"amqp://u:canary@localhost/%2f\", \"amqp://localhost\"]\n\
             [defaults]\nretry = { min = \"2s\" }\n[applications.shop]\nwindow = \"10s\"\nmax_items = 0x10\n",
            &[("TIDEGATE__INGEST__QUEUE", "123"), ("TIDEGATE__EGRESS__URI", "amqp://w:canary@localhost")],
        );
        let text = text.unwrap();
        assert!(!text.contains("canary"), "{text}");
        let all: toml::Table = text.parse().unwrap();
        let uris: Vec<_> =
            all["amqp"]["uris"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert_eq!(uris, ["amqp://u:***@localhost/%2f", "amqp://localhost"]);
        assert!(all["amqp"].get("uri").is_none());
        assert_eq!(all["egress"]["uri"].as_str(), Some("amqp://w:***@localhost"));
        assert_eq!(all["ingest"]["queue"].as_str(), Some("123"));
        assert_eq!(all["ingest"]["prefetch"].as_integer(), Some(10_000));
        assert_eq!(all["defaults"]["retry"]["min"].as_str(), Some("2s"));
        assert_eq!(all["defaults"]["retry"]["max"].as_str(), Some("5m"));
        assert_eq!(all["applications"]["shop"]["max_items"].as_integer(), Some(16));
    }

    #[test]
    fn what_is_shown_is_a_configuration_that_says_the_same() {
        let uris = "[amqp]\nuris = [\"amqp://localhost\"]\n";
        let over = ("TIDEGATE__AMQP__URI", "\"amqp://127.0.0.1\"");
        for (text, env) in [("[limits]\nmemory = \"64MiB\"\n", vec![]), (uris, vec![]), (uris, vec![over])] {
            let text = show(text, &env).unwrap();
            assert_eq!(show(&text, &[]).unwrap(), text);
        }
        assert!(show("[limits]\nmemory = 3\n", &[]).is_err());
    }

    #[test]
    fn only_a_password_is_left_out() {
        let shown = |uri| without_password(uri);
        assert_eq!(shown("amqp://u:p%40q@h:1/v"), Some("amqp://u:***@h:1/v".to_owned()));
        assert_eq!(shown("amqps://u:@h"), Some("amqps://u:***@h".to_owned()));
        for without in ["amqp://h:5672", "amqp://u@h", "amqp://[::1]:5/v"] {
            assert_eq!(shown(without), None);
        }
    }
}
