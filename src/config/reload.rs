//! Separates the keys that take effect at a reload from those that need a restart.

use super::{Config, DatabaseConfig, Endpoint, Tls};
use secrecy::{ExposeSecret, SecretString};
use std::path::Path;
use std::sync::Arc;

impl Config {
    /// This running configuration with all values of `new` that take effect at once: `[defaults]`,
    /// `[applications]`, the limits on requests and open windows, and `timeouts.stuck_after`. A limit that
    /// does not fit the memory and the number of shards in force waits for the restart as well.
    pub fn reloaded(&self, new: &Config) -> Config {
        let mut live = self.clone();
        live.defaults = new.defaults.clone();
        live.applications = new.applications.clone();
        live.readings = Arc::clone(&new.readings);
        live.limits.customers = new.limits.customers;
        live.limits.applications = new.limits.applications;
        live.limits.max_body = new.limits.max_body;
        live.limits.max_envelope_items = new.limits.max_envelope_items;
        live.limits.max_delay = new.limits.max_delay;
        live.timeouts.stuck_after = new.timeouts.stuck_after;
        // `new` fits its own memory and number of shards, which take a restart. A start refuses a limit that
        // does not fit those in force.
        let shards = u64::from(live.shards.count);
        if live.limits.max_body > live.limits.memory_of_one(live.shards) {
            live.limits.max_body = self.limits.max_body;
        }
        if live.limits.customers < shards {
            live.limits.customers = self.limits.customers;
        }
        if live.limits.applications < shards {
            live.limits.applications = self.limits.applications;
        }
        live
    }
}

/// The keys that differ and need a restart, in the order of the example file.
pub fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let same_ends = |a: &[Endpoint], b: &[Endpoint]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_endpoint(a, b))
    };
    // `egress.endpoints` follow `[amqp]` if egress has no login of its own; such a change is named once.
    let amqp_same = same_ends(&old.amqp.endpoints, &new.amqp.endpoints);
    let follows = |c: &Config| same_ends(&c.amqp.endpoints, &c.egress.endpoints);
    let follow = follows(old) && follows(new);
    let egress_same = same_ends(&old.egress.endpoints, &new.egress.endpoints) || follow;
    // The same for the trust settings.
    let tls_follows = |c: &Config| c.amqp.tls == c.egress.tls;
    let egress_tls = |same: fn(&Tls) -> Option<&Path>| {
        same(&old.egress.tls) == same(&new.egress.tls) || tls_follows(old) && tls_follows(new)
    };
    let amqp_tls = |same: fn(&Tls) -> Option<&Path>| same(&old.amqp.tls) == same(&new.amqp.tls);
    let ca_file: fn(&Tls) -> Option<&Path> = |tls| tls.ca_file.as_deref();
    let system_cas: fn(&Tls) -> Option<&Path> = |tls| tls.system_cas.then_some(Path::new(""));
    let certificate: fn(&Tls) -> Option<&Path> = |tls| tls.own.as_ref().map(|own| &*own.certificate_file);
    let key: fn(&Tls) -> Option<&Path> = |tls| tls.own.as_ref().map(|own| &*own.key_file);
    let login = |c: &[Endpoint]| c.first().map(|e| e.login);
    let live = old.reloaded(new).limits;
    let text = |token: &Option<SecretString>| token.as_ref().map(|t| t.expose_secret().to_owned());
    let all = [
        ("amqp.uri", amqp_same),
        ("amqp.topology", old.amqp.topology == new.amqp.topology),
        ("amqp.ca_file", amqp_tls(ca_file)),
        ("amqp.system_cas", amqp_tls(system_cas)),
        ("amqp.certificate_file", amqp_tls(certificate)),
        ("amqp.key_file", amqp_tls(key)),
        ("amqp.login", login(&old.amqp.endpoints) == login(&new.amqp.endpoints)),
        ("amqp.heartbeat", old.amqp.heartbeat == new.amqp.heartbeat),
        ("amqp.frame_max", old.amqp.frame_max == new.amqp.frame_max),
        ("ingest.queue", old.ingest.queue == new.ingest.queue),
        ("ingest.exchange", old.ingest.exchange == new.ingest.exchange),
        ("ingest.prefetch", old.ingest.prefetch == new.ingest.prefetch),
        ("egress.exchange", old.egress.exchange == new.egress.exchange),
        ("egress.uri", egress_same),
        ("egress.ca_file", egress_tls(ca_file)),
        ("egress.system_cas", egress_tls(system_cas)),
        ("egress.certificate_file", egress_tls(certificate)),
        ("egress.key_file", egress_tls(key)),
        ("egress.login", login(&old.egress.endpoints) == login(&new.egress.endpoints) || follow),
        ("egress.max_in_flight", old.egress.max_in_flight == new.egress.max_in_flight),
        ("dead.exchange", old.dead.exchange == new.dead.exchange),
        ("dead.queue", old.dead.queue == new.dead.queue),
        ("store.kind", old.store.kind == new.store.kind),
        ("store.path", old.store.path == new.store.path),
        ("store.hold_max", old.store.hold_max == new.store.hold_max),
        ("store.uri", same(old, new, login_of)),
        ("store.ca_file", same(old, new, |db| db.ca_file.clone())),
        ("store.schema", same(old, new, |db| db.schema.clone())),
        ("store.lease", same(old, new, |db| db.lease)),
        ("store.allow_async", same(old, new, |db| db.allow_async)),
        ("shards.count", old.shards == new.shards),
        ("limits.memory", old.limits.memory == new.limits.memory),
        ("limits.disk", old.limits.disk == new.limits.disk),
        ("limits.customers", live.customers == new.limits.customers),
        ("limits.applications", live.applications == new.limits.applications),
        ("limits.max_body", live.max_body == new.limits.max_body),
        ("admin.listen", old.admin.listen == new.admin.listen),
        ("admin.token_file", text(&old.admin.token) == text(&new.admin.token)),
        ("admin.read_token_file", text(&old.admin.read_token) == text(&new.admin.read_token)),
        ("admin.state_token_file", text(&old.admin.state_token) == text(&new.admin.state_token)),
        ("timeouts.connect", old.timeouts.connect == new.timeouts.connect),
        ("timeouts.confirm", old.timeouts.confirm == new.timeouts.confirm),
        ("timeouts.drain", old.timeouts.drain == new.timeouts.drain),
        ("telemetry.otlp_endpoint", old.otlp_endpoint == new.otlp_endpoint),
    ];
    all.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

/// Compares a property of the databases, if there are any.
fn same<T: PartialEq>(old: &Config, new: &Config, of: impl Fn(&DatabaseConfig) -> T) -> bool {
    old.store.database.as_ref().map(&of) == new.store.database.as_ref().map(&of)
}

/// The parts of a login. A password from a file is read again at each connect.
fn login_of(db: &DatabaseConfig) -> impl PartialEq {
    let literal = db.password.as_ref().filter(|_| db.password_file.is_none());
    let literal = literal.map(|password| password.expose_secret().to_owned());
    (db.hosts.clone(), db.user.clone(), db.database.clone(), db.tls, db.password_file.clone(), literal)
}

fn same_endpoint(a: &Endpoint, b: &Endpoint) -> bool {
    let parts = |e: &Endpoint| (e.tls.is_some(), e.host.clone(), e.port, e.vhost.clone(), e.user.clone());
    // A password from a file is read again at each connect.
    let from_file = a.password_file.is_some() && a.password_file == b.password_file;
    let same_password =
        a.password_file == b.password_file && a.password.expose_secret() == b.password.expose_secret();
    parts(a) == parts(b) && (from_file || same_password)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Copies, DelayFrom, Reading, Readings};
    use std::time::Duration;

    #[test]
    fn what_takes_effect_at_once_needs_no_restart() {
        let old = Config::default();
        let mut new = old.clone();
        assert!(needs_restart(&old, &new).is_empty());
        new.defaults.window = 7;
        new.applications.insert("shop".into(), new.defaults.clone());
        let headers = vec!["traceparent".to_owned()];
        let copies = Arc::new(Copies { headers, ..Copies::default() });
        let defaults =
            Reading { copies, delay_from: DelayFrom::Timestamp, traces: false, ..Reading::default() };
        new.readings = Arc::new(Readings { defaults, ..Readings::default() });
        new.limits.customers = 1;
        new.limits.max_body = 2;
        new.limits.max_envelope_items = 3;
        new.limits.max_delay = Duration::from_secs(4);
        new.timeouts.stuck_after = Duration::from_secs(5);
        assert!(needs_restart(&old, &new).is_empty());
        assert_eq!(format!("{:?}", old.reloaded(&new)), format!("{new:?}"));
    }

    #[test]
    fn a_limit_that_does_not_fit_what_stays_waits_for_the_restart() {
        let mut old = Config::default();
        old.limits.memory = 256 << 20;
        let judged = |old: &Config, new: &Config| {
            let live = old.reloaded(new).limits;
            (needs_restart(old, new), live.max_body, live.customers, live.applications)
        };
        let usual = (old.limits.max_body, old.limits.customers, old.limits.applications);
        // Right in itself: there is more memory in the new file.
        let mut new = old.clone();
        (new.limits.memory, new.limits.max_body) = (1 << 30, 512 << 20);
        let keys = vec!["limits.memory", "limits.max_body"];
        assert_eq!(judged(&old, &new), (keys, usual.0, usual.1, usual.2));
        new.limits.max_body = 256 << 20;
        assert_eq!(judged(&old, &new), (vec!["limits.memory"], 256 << 20, usual.1, usual.2));
        // A shard has its part.
        old.shards.count = 8;
        new = old.clone();
        (new.limits.max_body, new.shards.count) = ((32 << 20) + 1, 4);
        (new.limits.customers, new.limits.applications) = (7, 4);
        let keys = vec!["shards.count", "limits.customers", "limits.applications", "limits.max_body"];
        assert_eq!(judged(&old, &new), (keys, usual.0, usual.1, usual.2));
        (new.limits.max_body, new.limits.customers, new.limits.applications) = (32 << 20, 8, 8);
        assert_eq!(judged(&old, &new), (vec!["shards.count"], 32 << 20, 8, 8));
    }

    #[test]
    fn the_rest_is_named_and_stays() {
        let old = Config::default();
        let mut new = old.clone();
        new.amqp.endpoints[0].password = "other".to_owned().into();
        new.egress.endpoints = new.amqp.endpoints.clone();
        assert_eq!(needs_restart(&old, &new), ["amqp.uri"]);
        new.egress.endpoints[0].user = "out".into();
        new.store.path = "/elsewhere".into();
        new.shards.count = 2;
        new.limits.memory = 1;
        new.admin.listen = crate::Listen::Off;
        new.admin.token = Some("t".to_owned().into());
        new.admin.read_token = Some("r".to_owned().into());
        new.admin.state_token = Some("s".to_owned().into());
        new.timeouts.drain = Duration::from_secs(1);
        let keys = [
            "amqp.uri",
            "egress.uri",
            "store.path",
            "shards.count",
            "limits.memory",
            "admin.listen",
            "admin.token_file",
            "admin.read_token_file",
            "admin.state_token_file",
            "timeouts.drain",
        ];
        assert_eq!(needs_restart(&old, &new), keys);
        assert_eq!(format!("{:?}", old.reloaded(&new)), format!("{old:?}"));
    }
}
