//! Bounds and forms of values that people and producers write, each defined once: names, ids, loopback. Pure.
//!
//! The wire, the admin port and the command line read the same values, and must accept the same ones.

use std::net::IpAddr;

/// Longest name of an application or a customer, bytes.
pub const MAX_NAME: usize = 200;

/// Longest id, bytes: the limit of an AMQP short string.
pub const MAX_ID: usize = 255;

/// Largest message of a broker (RabbitMQ's hard limit), bytes.
pub const BROKER_MAX: u64 = 512 << 20;

/// Headers of a request that tidegate reads.
pub mod request_header {
    /// The header `x-application`.
    pub const APPLICATION: &str = "x-application";
    /// The header `x-customer`.
    pub const CUSTOMER: &str = "x-customer";
    /// The header `x-deliver-at`.
    pub const DELIVER_AT: &str = "x-deliver-at";
    /// The header `x-delay`.
    pub const DELAY: &str = "x-delay";
    /// The header `x-opt-delivery-time`.
    pub const OPT_DELIVERY_TIME: &str = "x-opt-delivery-time";
    /// The header `x-opt-delivery-delay`.
    pub const OPT_DELIVERY_DELAY: &str = "x-opt-delivery-delay";
    /// The header `x-deliver-before`.
    pub const DELIVER_BEFORE: &str = "x-deliver-before";
    /// The header `x-on-duplicate`.
    pub const ON_DUPLICATE: &str = "x-on-duplicate";

    /// All of these names.
    pub const ALL: [&str; 8] = [
        APPLICATION,
        CUSTOMER,
        DELIVER_AT,
        DELAY,
        OPT_DELIVERY_TIME,
        OPT_DELIVERY_DELAY,
        DELIVER_BEFORE,
        ON_DUPLICATE,
    ];
}

/// Headers that tidegate sets on a batch.
pub mod batch_header {
    /// The header `x-due`.
    pub const DUE: &str = "x-due";
    /// The header `x-attempt`.
    pub const ATTEMPT: &str = "x-attempt";
    /// The header `x-batch`.
    pub const BATCH: &str = "x-batch";
    /// The header `x-count`.
    pub const COUNT: &str = "x-count";
    /// The header `x-closed-by`.
    pub const CLOSED_BY: &str = "x-closed-by";
    /// The header `x-retry`.
    pub const RETRY: &str = "x-retry";

    /// All of these names.
    pub const ALL: [&str; 6] = [DUE, ATTEMPT, BATCH, COUNT, CLOSED_BY, RETRY];
}

/// Prefix of the headers that tidegate sets on a dead letter.
pub const DEAD_PREFIX: &str = "x-tidegate-";

/// Headers that no output carries: they re-route (`CC`, `BCC`), or belong to the broker.
pub const NEVER_COPIED: [&str; 4] = ["CC", "BCC", "x-delivery-count", "x-acquired-count"];

/// Moments below this many milliseconds were meant in seconds: 10^11 s is in the year 5138, 10^11 ms in March
/// 1973.
pub const FIRST_PLAUSIBLE_MS: u64 = 100_000_000_000;

/// Whether an address belongs to this machine, in IPv4, IPv6, or IPv4 in IPv6 (`::ffff:127.0.0.1`).
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether a host is this machine, by its name or address; nothing is resolved.
pub fn is_loopback_host(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_in_every_spelling() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "::", "0.0.0.0", "::ffff:10.0.0.1", ""] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
