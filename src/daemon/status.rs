//! What the daemon reports of itself: link states, the state document, the status for systemd.

use super::lasting::Lasting;
use super::shard::{Shard, LINKS};
use crate::admin::{Latch, LinkState, MapState, Readiness, ShardLine, ShardState, StoreState, Traffic};
use tidegate_amqp::{LinkStatus, MapStats, Side};
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
    let links = [Side::Ingest, Side::Egress].map(Side::as_str).into_iter().zip(&shard.links);
    lasting.judged(ShardState {
        line: ShardLine { owner, epoch: shard.epoch, lease_ms, waiting: snapshot.items.waiting, ..base.line },
        snapshot,
        links: links.map(|(side, link)| link_state(side, link.as_ref())).collect(),
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

/// A link in the state.
pub(super) fn link_state(side: &str, link: Option<&LinkStatus>) -> LinkState {
    let (state, detail) = link.map_or(("connecting", String::new()), describe);
    let notes = match link {
        Some(LinkStatus::Up { notes, .. }) => notes.clone(),
        Some(
            LinkStatus::Connecting { .. }
            | LinkStatus::Paused { .. }
            | LinkStatus::Standby { .. }
            | LinkStatus::Blocked { .. }
            | LinkStatus::Down { .. }
            | LinkStatus::Closed,
        )
        | None => Vec::new(),
    };
    LinkState { side: side.to_owned(), state: state.to_owned(), detail, notes }
}

/// The counters of the map in the state.
pub(super) fn map_state(stats: MapStats) -> MapState {
    let MapStats { forwarded, misplaced, bound, corrected, bind_failures } = stats;
    MapState { forwarded, misplaced, bound, corrected, bind_failures }
}

/// Records a connection's new state.
pub(super) fn note_link(
    links: &mut [Option<LinkStatus>; LINKS],
    side: Side,
    link: LinkStatus,
    readiness: &Readiness,
) {
    let (state, detail) = describe(&link);
    match &link {
        LinkStatus::Blocked { .. } => tracing::warn!(side = side.as_str(), state, "{detail}"),
        // The connection's own supervisor logs these, at a limited rate.
        LinkStatus::Down { .. }
        | LinkStatus::Up { .. }
        | LinkStatus::Connecting { .. }
        | LinkStatus::Paused { .. }
        | LinkStatus::Standby { .. }
        | LinkStatus::Closed => tracing::debug!(side = side.as_str(), state, "{detail}"),
    }
    let (latch, index) = match side {
        Side::Ingest => (Latch::Ingest, 0),
        Side::Egress => (Latch::Egress, 1),
    };
    readiness.set(latch, link.is_up());
    links[index] = Some(link);
    // A link is up once its topology stands.
    let both = links.iter().all(|link| link.as_ref().is_some_and(LinkStatus::is_up));
    readiness.set(Latch::Topology, both);
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
