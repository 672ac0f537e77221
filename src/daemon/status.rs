//! What the daemon reports of itself: link states, the state document, the status for systemd.

use super::lasting::Lasting;
use super::shard::Shard;
use crate::admin::{LinkState, ShardLine, ShardState, StoreState, Traffic};
use tidegate_amqp::LinkStatus;
use tidegate_common::clock;
use tidegate_types::snapshot::Snapshot;

/// The state of a shard at work.
pub(super) fn state(shard: &Shard, lasting: &Lasting, draining: bool) -> ShardState {
    let now = clock::now();
    let base = lasting.state();
    let store = shard.store.stats();
    let snapshot = Snapshot { longest_turn_us: base.snapshot.longest_turn_us, ..shard.engine.snapshot(now) };
    let lease_ms = shard.lease.as_ref().map(|lease| lease.remaining(now.mono));
    // With the memory store another daemon may hold the waiting items, and is not known by name.
    let is_spare = matches!(shard.links[0], Some(LinkStatus::Standby { .. }));
    let owner = Some(base.node.clone()).filter(|name| !name.is_empty() && !is_spare);
    let links = [("ingest", &shard.links[0]), ("egress", &shard.links[1])];
    lasting.judged(ShardState {
        line: ShardLine { owner, epoch: shard.epoch, lease_ms, waiting: snapshot.items.waiting, ..base.line },
        snapshot,
        links: links
            .into_iter()
            .map(|(side, link)| {
                let (state, detail) =
                    link.as_ref().map_or(("connecting", String::new()), |link| describe(link));
                LinkState { side: side.to_owned(), state: state.to_owned(), detail }
            })
            .collect(),
        store: StoreState {
            bytes: store.usage.map_or(0, |usage| usage.used),
            free_bytes: store.usage.map(|usage| usage.free).filter(|free| *free < u64::MAX),
            queue: store.queued as u64,
            lease_remaining_ms: lease_ms,
            ..base.store
        },
        traffic: Traffic { prefetch: shard.amqp.prefetch(), ..base.traffic },
        draining,
        node: base.node,
    })
}

/// One line for `systemctl status`.
pub(super) fn status_line(shard: &Shard, disk_low: bool) -> String {
    for (side, link) in ["ingest", "egress"].iter().zip(&shard.links) {
        match link {
            Some(
                link @ (LinkStatus::Down { .. }
                | LinkStatus::Standby { .. }
                | LinkStatus::Blocked { .. }
                | LinkStatus::Up { dead: Some(_), .. }),
            ) => {
                let (state, detail) = describe(link);
                return format!("{side} {state}: {detail}");
            }
            Some(LinkStatus::Up { .. } | LinkStatus::Paused { .. } | LinkStatus::Closed) => {}
            Some(LinkStatus::Connecting { .. }) | None => return format!("{side} connecting"),
        }
    }
    // Sums that the engine maintains: counting would be too slow once a second with many applications.
    let (waiting, due, windows) = shard.engine.sums();
    let low = if disk_low { "disk nearly full, " } else { "" };
    let confirmed = shard.engine.counters().confirmed;
    format!("{low}{waiting} waiting, {due} due, {windows} windows open, {confirmed} confirmed")
}

/// The word for a link's state, and the rest.
pub(super) fn describe(link: &LinkStatus) -> (&'static str, String) {
    let [connecting, connected, paused, standby, blocked, _, down, closed] = LinkState::STATES;
    match link {
        LinkStatus::Connecting { address } => (connecting, address.clone()),
        LinkStatus::Up { address, dead: None, .. } => (connected, address.clone()),
        LinkStatus::Up { address, dead: Some(error), .. } => {
            (connected, format!("{address}; dead letters cannot be published: {error}"))
        }
        LinkStatus::Paused { address } => (paused, address.clone()),
        LinkStatus::Standby { reason } => (standby, reason.clone()),
        LinkStatus::Blocked { reason } => (blocked, reason.clone()),
        LinkStatus::Down { error, retry_in } => {
            (down, format!("{error}; next try in {} ms", retry_in.as_millis()))
        }
        LinkStatus::Closed => (closed, String::new()),
    }
}
