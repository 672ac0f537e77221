//! What the daemon reports of itself: link states, the state document, the status for systemd.

use super::life::Life;
use crate::admin::{Latch, LinkState, StateInput, StoreState, Traffic};
use crate::amqp::{LinkStatus, Side};
use crate::clock;
use crate::config::{Config, StoreKind};
use crate::engine::snapshot::Snapshot;

/// The value of `store.kind`.
pub(super) fn kind(config: &Config) -> &'static str {
    match config.store.kind {
        StoreKind::Disk => "disk",
        StoreKind::Memory => "memory",
        StoreKind::Postgres => "postgres",
    }
}

impl Life<'_> {
    /// Records a connection's new state.
    pub(super) fn link(&mut self, side: Side, link: LinkStatus) {
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
        self.process.readiness.set(latch, link.is_up());
        self.shard.links[index] = Some(link);
        // A link is up once its topology stands.
        let both = self.shard.links.iter().all(|link| link.as_ref().is_some_and(LinkStatus::is_up));
        self.process.readiness.set(Latch::Topology, both);
        self.set_consumer();
    }

    /// Keeps the latch closed while this daemon takes requests, or while another one does whose requests
    /// would come to this one: with the memory store, all of them.
    pub(super) fn set_consumer(&self) {
        self.process.readiness.set(Latch::Consumer, self.shard.consumes || self.is_spare());
    }

    /// Whether another daemon serves the queue; with the memory store, its requests come to this daemon when
    /// it ends.
    pub(super) fn is_spare(&self) -> bool {
        self.process.config.store.kind == StoreKind::Memory
            && matches!(self.shard.links[0], Some(LinkStatus::Standby { .. }))
    }

    pub(super) fn state(&self) -> StateInput {
        let now = clock::now();
        let base = self.process.state();
        let store = self.shard.store.stats();
        let links = [("ingest", &self.shard.links[0]), ("egress", &self.shard.links[1])];
        StateInput {
            snapshot: Snapshot {
                longest_turn_us: base.snapshot.longest_turn_us,
                ..self.shard.engine.snapshot(now)
            },
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
                lease_remaining_ms: self.shard.lease.as_ref().map(|lease| lease.remaining(now.mono)),
                ..base.store
            },
            traffic: Traffic { prefetch: self.shard.amqp.prefetch(), ..base.traffic },
            draining: self.stop_at_ms.is_some(),
            ..base
        }
    }

    /// One line for `systemctl status`.
    pub(super) fn status_line(&self) -> String {
        for (side, link) in ["ingest", "egress"].iter().zip(&self.shard.links) {
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
        let (waiting, due, windows) = self.shard.engine.sums();
        let low = if self.disk_low { "disk nearly full, " } else { "" };
        let confirmed = self.shard.engine.counters().confirmed;
        format!("{low}{waiting} waiting, {due} due, {windows} windows open, {confirmed} confirmed")
    }
}

fn describe(link: &LinkStatus) -> (&'static str, String) {
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
