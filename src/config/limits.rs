//! `[limits]`: what the daemon accepts and uses.

use super::section::Section;
use super::terms::BROKER_MAX;
use super::units::{size, Size, Span, Whole, LONGEST};
use super::{LimitsConfig, ShardsConfig, StoreKind};
use std::time::Duration;

/// Least memory of one engine with its store, bytes.
pub(crate) const LEAST_MEMORY: u64 = 16 << 20;
/// The store's log consists of files of 64 MiB, and two of them may exist before the first is removed.
pub(crate) const LEAST_DISK: u64 = 256 << 20;

/// Reads `[limits]`. All limits are those of the whole daemon, also with several shards.
pub(crate) fn limits(
    s: &mut Section<'_, '_>,
    d: LimitsConfig,
    kind: StoreKind,
    shards: ShardsConfig,
) -> LimitsConfig {
    let limits = LimitsConfig {
        memory: s.get("memory", d.memory, Size(LEAST_MEMORY..=1 << 50)),
        disk: disk_limit(s, d.disk),
        customers: s.get("customers", d.customers, Whole(1..=1_000_000_000)),
        applications: s.get("applications", d.applications, Whole(1..=100_000_000)),
        max_body: s.get("max_body", d.max_body, Size(1..=BROKER_MAX)),
        max_envelope_items: s.get("max_envelope_items", d.max_envelope_items as u64, Whole(1..=1_000_000))
            as usize,
        max_delay: s.get("max_delay", d.max_delay, Span(Duration::from_millis(1)..=LONGEST)),
    };
    if limits.disk > 0 && kind != StoreKind::Disk {
        s.warn("disk", "has no effect: store.kind is not \"disk\"");
    }
    if !s.failed(&["memory", "max_body"]) {
        bodies_fit_memory(s, &limits, shards);
    }
    limits
}

impl LimitsConfig {
    /// The memory of the engine of one shard, bytes.
    pub(crate) fn memory_of_one(&self, shards: ShardsConfig) -> u64 {
        self.memory / u64::from(shards.count).max(1)
    }
}

/// Checks the largest body against the memory of the engine that takes it.
fn bodies_fit_memory(s: &mut Section<'_, '_>, limits: &LimitsConfig, shards: ShardsConfig) {
    let whose = if shards.count > 1 { "a shard's part of limits.memory" } else { "limits.memory" };
    let memory = limits.memory_of_one(shards);
    if memory < LEAST_MEMORY {
        // The number of shards is the fault, and is reported as one.
        return;
    }
    let key = if s.is_set("max_body") { "max_body" } else { "memory" };
    if limits.max_body > memory {
        let (body, memory) = (size(limits.max_body), size(memory));
        s.fault(key, format!("one body of limits.max_body ({body}) would not fit into {whose} ({memory})"));
    } else if limits.max_body > memory / 4 {
        s.warn(
            key,
            format!("limits.max_body is more than a quarter of {whose}: large bodies will slow the intake"),
        );
    }
}

/// `limits.disk`: 0, or enough for the store's log, which consists of files of 64 MiB.
fn disk_limit(s: &mut Section<'_, '_>, default: u64) -> u64 {
    let disk = s.get("disk", default, Size(0..=1 << 60));
    if (1..LEAST_DISK).contains(&disk) {
        s.fault(
            "disk",
            format!("{} is too small: 0B for none, or at least {}", size(disk), size(LEAST_DISK)),
        );
    }
    disk
}
