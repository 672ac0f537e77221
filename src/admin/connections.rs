//! The connections of the admin port: their bounds, and which one makes room for a newcomer.
//!
//! A probe must always get in. So a newcomer is not refused while any connection only waits for its next
//! request. The connection that has waited longest makes room, which is the slow or silent one; connections
//! without any request so far go first. A connection that has just come is spared for a moment, and the
//! newcomer waits: otherwise a crowd of repeated connects would evict clients before their first request.
//! Requests in progress are bounded elsewhere to fewer than the places, and are never ended for a newcomer;
//! nor is an export.

use super::accept::Source;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as AsyncMutex, Notify};

/// How long a connection that waits for a request is spared.
const SPARED: Duration = Duration::from_millis(100);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Upper bound over all sources. It exceeds the bound on requests in progress, so that probes find a
    /// place.
    pub(super) all: usize,
    /// Upper bound for one address, or for one user of this machine.
    pub(super) per_source: usize,
    /// Most newcomers of one source that wait for a place; over all sources, twice as many. Others are
    /// closed.
    pub(super) newcomers: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places { all: 96, per_source: 64, newcomers: 256 }
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    places: Places,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// For each source with waiting newcomers: their number, and the lock of their order.
    newcomers: HashMap<Source, (usize, Arc<AsyncMutex<()>>)>,
}

#[derive(Debug)]
struct Open {
    source: Source,
    /// It has completed a request.
    has_asked: bool,
    /// Set while it waits for a request.
    waits_since: Option<Instant>,
    leave: Arc<Notify>,
}

/// The decision about a newcomer.
#[derive(Debug)]
pub(super) enum ConnectionAdmission {
    /// It has a place.
    Granted(ConnectionPlace),
    /// The newcomer may ask again at this moment, when the next connection can make room.
    Later(Instant),
    /// Requests in progress take all places.
    Refused,
}

/// The place of one connection, released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    connections: Arc<Connections>,
    id: u64,
    /// Notified when the connection has to make room.
    pub(super) leave: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(places: Places) -> Connections {
        Connections { places, table: Mutex::default() }
    }

    /// Admits a newcomer if there is or can be a place.
    pub(super) fn admit(self: &Arc<Self>, source: Source, now: Instant) -> ConnectionAdmission {
        let mut table = self.table();
        let of_source = table.open.values().filter(|open| open.source == source).count();
        let evicted = if of_source >= self.places.per_source {
            table.evict(now, |open| open.source == source)
        } else if table.open.len() >= self.places.all {
            table.evict(now, |_| true)
        } else {
            Ok(())
        };
        match evicted {
            Ok(()) => {}
            Err(Some(at)) => return ConnectionAdmission::Later(at),
            Err(None) => return ConnectionAdmission::Refused,
        }
        table.next += 1;
        let (id, leave) = (table.next, Arc::new(Notify::new()));
        let open = Open { source, has_asked: false, waits_since: Some(now), leave: Arc::clone(&leave) };
        table.open.insert(id, open);
        ConnectionAdmission::Granted(ConnectionPlace { connections: Arc::clone(self), id, leave })
    }

    /// As [`admit`](Self::admit), but behind waiting newcomers of the same source.
    pub(super) fn admit_behind(self: &Arc<Self>, source: Source, now: Instant) -> ConnectionAdmission {
        if self.table().newcomers.contains_key(&source) {
            return ConnectionAdmission::Later(now);
        }
        self.admit(source, now)
    }

    /// Makes a newcomer wait, behind those of its source only. `None`: too many wait.
    pub(super) fn wait(self: &Arc<Self>, source: Source) -> Option<Newcomer> {
        let newcomers = &mut self.table().newcomers;
        let all: usize = newcomers.values().map(|(count, _)| count).sum();
        let (of_source, turn) = newcomers.entry(source).or_default();
        if *of_source >= self.places.newcomers || all >= 2 * self.places.newcomers {
            if *of_source == 0 {
                newcomers.remove(&source);
            }
            return None;
        }
        *of_source += 1;
        Some(Newcomer { turn: Arc::clone(turn), connections: Arc::clone(self), source })
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A newcomer that waits for a place; counted until it is dropped.
#[derive(Debug)]
pub(super) struct Newcomer {
    connections: Arc<Connections>,
    source: Source,
    turn: Arc<AsyncMutex<()>>,
}

impl Newcomer {
    /// Its place, once it is first among those of its source and a connection can make room. `None`: requests
    /// in progress take all places.
    pub(super) async fn place(&self) -> Option<ConnectionPlace> {
        let _turn = self.turn.lock().await;
        loop {
            match self.connections.admit(self.source, tokio::time::Instant::now().into_std()) {
                ConnectionAdmission::Granted(place) => return Some(place),
                ConnectionAdmission::Refused => return None,
                ConnectionAdmission::Later(at) => tokio::time::sleep_until(at.into()).await,
            }
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let newcomers = &mut self.connections.table().newcomers;
        let Some((count, _)) = newcomers.get_mut(&self.source) else { return };
        *count -= 1;
        if *count == 0 {
            newcomers.remove(&self.source);
        }
    }
}

impl ConnectionTable {
    /// Evicts a connection that waits for its next request. If all those are spared, returns the moment at
    /// which the first one no longer is; `None` if none waits.
    fn evict(&mut self, now: Instant, among: impl Fn(&Open) -> bool) -> Result<(), Option<Instant>> {
        let waiting = self.open.iter().filter(|(_, open)| among(open));
        let waiting =
            waiting.filter_map(|(id, open)| Some((open.waits_since? + SPARED, open.has_asked, *id)));
        let waiting: Vec<_> = waiting.collect();
        let first = waiting.iter().filter(|(until, ..)| *until <= now);
        match first.min_by_key(|(until, has_asked, id)| (*has_asked, *until, *id)) {
            Some((.., id)) => {
                if let Some(open) = self.open.remove(id) {
                    open.leave.notify_one();
                }
                Ok(())
            }
            None => Err(waiting.iter().map(|(until, ..)| *until).min()),
        }
    }
}

impl ConnectionPlace {
    /// The head of a request has arrived.
    pub(super) fn begin(&self) {
        if let Some(open) = self.connections.table().open.get_mut(&self.id) {
            open.waits_since = None;
        }
    }

    /// The request has been answered.
    pub(super) fn end(&self) {
        if let Some(open) = self.connections.table().open.get_mut(&self.id) {
            (open.has_asked, open.waits_since) = (true, Some(Instant::now()));
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.table().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::net::IpAddr;

    fn ip(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    /// Whether the connection has to leave.
    fn left(place: &ConnectionPlace) -> bool {
        place.leave.notified().now_or_never().is_some()
    }

    fn granted(all: &Arc<Connections>, source: Source, now: Instant) -> ConnectionPlace {
        match all.admit(source, now) {
            ConnectionAdmission::Granted(place) => place,
            other @ (ConnectionAdmission::Later(_) | ConnectionAdmission::Refused) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_one_that_has_waited_longest_makes_room() {
        let all = Arc::new(Connections::new(Places { all: 3, per_source: 3, newcomers: 1 }));
        let t0 = Instant::now();
        let [first, second, third] = [1, 2, 3].map(|n| granted(&all, ip(n), t0));
        // The latest connection is spared.
        let ConnectionAdmission::Later(then) = all.admit(ip(9), t0) else { panic!("a place") };
        assert_eq!(then, t0 + SPARED);
        // The first has completed a request since, and so goes last, even if that was long ago.
        first.begin();
        first.end();
        let later = Instant::now() + SPARED;
        let probe = granted(&all, ip(9), later);
        assert_eq!([&first, &second, &third].map(left), [false, true, false]);
        drop(second);
        // All are in a request: none makes room.
        for place in [&first, &third, &probe] {
            place.begin();
        }
        assert!(matches!(all.admit(ip(9), later), ConnectionAdmission::Refused));
        drop(third);
        granted(&all, ip(9), later);
    }

    #[test]
    fn who_waits_is_bounded_for_each_source_and_for_all() {
        let all = Arc::new(Connections::new(Places { all: 2, per_source: 2, newcomers: 3 }));
        let mine = [(); 3].map(|()| all.wait(ip(1)));
        assert!(mine.iter().all(Option::is_some) && all.wait(ip(1)).is_none());
        let others: Vec<_> = (2..5).map(|n| all.wait(ip(n))).collect();
        assert!(others.iter().all(Option::is_some) && all.wait(ip(9)).is_none());
        // A newcomer now must wait behind these, although there is a place.
        let now = Instant::now();
        assert!(matches!(all.admit_behind(ip(1), now), ConnectionAdmission::Later(_)));
        drop(mine);
        assert!(matches!(all.admit_behind(ip(1), now), ConnectionAdmission::Granted(_)));
        assert!(all.wait(ip(9)).is_some());
    }

    #[test]
    fn one_address_takes_the_places_of_its_own_alone() {
        let all = Arc::new(Connections::new(Places { all: 4, per_source: 2, newcomers: 1 }));
        let t0 = Instant::now();
        let other = granted(&all, ip(7), t0);
        let mine = [granted(&all, ip(1), t0), granted(&all, ip(1), t0)];
        let mapped = granted(&all, "::ffff:10.0.0.1".parse::<IpAddr>().unwrap().into(), t0 + SPARED);
        assert_eq!((left(&other), left(&mine[0]), left(&mine[1])), (false, true, false));
        mine[1].begin();
        mapped.begin();
        assert!(matches!(all.admit(ip(1), t0 + SPARED), ConnectionAdmission::Refused));
        granted(&all, ip(2), t0 + SPARED);
    }
}
