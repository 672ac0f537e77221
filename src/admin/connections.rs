//! The connections of the admin port: how many there may be, and who must go when one more comes.
//!
//! A probe must get in whatever else is there. So a newcomer is not refused while some connection only waits
//! for its next request: the one that has waited longest makes room, which is the slow or silent one, and
//! rather one that has never asked anything. A connection that has just come is spared for a moment, in which
//! the newcomer waits: else a crowd that comes again and again would throw out what is about to ask. Requests
//! under way are bounded elsewhere to fewer than there are places, and are never ended for a newcomer; nor is
//! an export.

use super::accept::Source;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as AsyncMutex, Notify};

/// Time in which a connection that waits for a request is spared.
const SPARED: Duration = Duration::from_millis(100);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Upper bound over all sources. More than requests that may be under way, so that probes find a place.
    pub(super) all: usize,
    /// Upper bound for one address, or for one user of this machine.
    pub(super) per_source: usize,
    /// Newcomers of one source that wait for a place; twice as many of all. What is beyond is closed.
    pub(super) newcomers: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places { all: 96, per_source: 64, newcomers: 256 }
    }
}

/// Everything that is open.
#[derive(Debug, Default)]
pub(super) struct Connections {
    places: Places,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Whose newcomers wait for a place, how many, and whose turn it is.
    newcomers: HashMap<Source, (usize, Arc<AsyncMutex<()>>)>,
}

#[derive(Debug)]
struct Open {
    source: Source,
    /// It has asked something and was answered.
    has_asked: bool,
    /// Set while it waits for a request.
    waits_since: Option<Instant>,
    leave: Arc<Notify>,
}

/// What becomes of a newcomer.
#[derive(Debug)]
pub(super) enum ConnectionAdmission {
    /// It is in.
    Granted(ConnectionPlace),
    /// It may be asked for again at this moment: then the next one can make room.
    Later(Instant),
    /// All places are taken by requests under way.
    Refused,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    connections: Arc<Connections>,
    id: u64,
    /// Told when it has to make room.
    pub(super) leave: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(places: Places) -> Connections {
        Connections { places, table: Mutex::default() }
    }

    /// A place for a newcomer.
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

    /// A place for a newcomer, unless others of its source wait for one.
    pub(super) fn admit_behind(self: &Arc<Self>, source: Source, now: Instant) -> ConnectionAdmission {
        if self.table().newcomers.contains_key(&source) {
            return ConnectionAdmission::Later(now);
        }
        self.admit(source, now)
    }

    /// A newcomer that came too soon waits, behind those of its source and nobody else. `None`: too many do.
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

/// One that waits for a place; counted until it is dropped.
#[derive(Debug)]
pub(super) struct Newcomer {
    connections: Arc<Connections>,
    source: Source,
    turn: Arc<AsyncMutex<()>>,
}

impl Newcomer {
    /// Its place, when its turn among those of its source has come and one can make room. `None`: all places
    /// are taken by requests under way.
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
    /// Sends one away that waits for its next request. If all that wait are spared: the moment at which the
    /// first of them no longer is; `None` if none waits.
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
    /// A request has come in whole, as far as its head goes.
    pub(super) fn begin(&self) {
        if let Some(open) = self.connections.table().open.get_mut(&self.id) {
            open.waits_since = None;
        }
    }

    /// It has been answered.
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

    /// Whether it is to leave.
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
        // What has just come is spared.
        let ConnectionAdmission::Later(then) = all.admit(ip(9), t0) else { panic!("a place") };
        assert_eq!(then, t0 + SPARED);
        // The first has asked and been answered since: it is the last to go, however long ago that is.
        first.begin();
        first.end();
        let later = Instant::now() + SPARED;
        let probe = granted(&all, ip(9), later);
        assert_eq!([&first, &second, &third].map(left), [false, true, false]);
        drop(second);
        // All at work: none makes room.
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
        // Who comes now is no sooner than these, though there is a place.
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
