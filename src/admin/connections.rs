//! The connections of the admin port: how many there may be, and who must go when one more comes; pure.
//!
//! A probe must get in whatever else is there. So a newcomer is not refused while some connection only waits for its
//! next request: the one that has waited longest makes room, which is the slow or silent one. Requests under way are
//! bounded elsewhere to fewer than there are places, and are never ended for a newcomer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Upper bound over all addresses. More than requests that may be under way, so that probes find a place.
    pub(super) all: usize,
    /// Upper bound for one address.
    pub(super) per_address: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places { all: 96, per_address: 64 }
    }
}

/// Everything that is open.
#[derive(Debug, Default)]
pub(super) struct Connections {
    places: Places,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    peer: IpAddr,
    /// Set while it waits for a request: a number that grows with the moment at which it began to.
    waits_since: Option<u64>,
    leave: Arc<Notify>,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    connections: Arc<Connections>,
    id: u64,
    /// Told when it has to make room.
    pub(super) leave: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(places: Places) -> Connections {
        Connections { places, table: Mutex::default() }
    }

    /// A place for a newcomer; `None`: there is none, and nobody who could make room.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        // An IPv4 client of an IPv6 listener is the same client.
        let peer = peer.to_canonical();
        let mut table = self.table();
        let of_peer = table.open.values().filter(|open| open.peer == peer).count();
        if of_peer >= self.places.per_address {
            table.evict(|open| open.peer == peer)?;
        } else if table.open.len() >= self.places.all {
            table.evict(|_| true)?;
        }
        let id = table.number();
        let leave = Arc::new(Notify::new());
        table.open.insert(id, Open { peer, waits_since: Some(id), leave: Arc::clone(&leave) });
        Some(Place { connections: Arc::clone(self), id, leave })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends the one away that has waited longest for its next request.
    fn evict(&mut self, among: impl Fn(&Open) -> bool) -> Option<()> {
        let waiting = self.open.iter().filter(|(_, open)| among(open));
        let (_, id) = waiting.filter_map(|(id, open)| Some((open.waits_since?, *id))).min()?;
        self.open.remove(&id)?.leave.notify_one();
        Some(())
    }
}

impl Place {
    /// A request has come in whole, as far as its head goes.
    pub(super) fn begin(&self) {
        if let Some(open) = self.connections.table().open.get_mut(&self.id) {
            open.waits_since = None;
        }
    }

    /// It has been answered.
    pub(super) fn end(&self) {
        let mut table = self.connections.table();
        let now = table.number();
        if let Some(open) = table.open.get_mut(&self.id) {
            open.waits_since = Some(now);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.table().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Whether it was told to leave.
    fn left(place: &Place) -> bool {
        place.leave.notified().now_or_never().is_some()
    }

    #[test]
    fn the_one_that_has_waited_longest_makes_room() {
        let all = Arc::new(Connections::new(Places { all: 3, per_address: 3 }));
        let [first, second, third] = [1, 2, 3].map(|n| all.admit(ip(n)).unwrap());
        // The first has asked and been answered since.
        first.begin();
        first.end();
        let probe = all.admit(ip(9)).unwrap();
        assert_eq!([&first, &second, &third].map(left), [false, true, false]);
        drop(second);
        // All at work: nobody makes room.
        for place in [&first, &third, &probe] {
            place.begin();
        }
        assert!(all.admit(ip(9)).is_none());
        drop(third);
        assert!(all.admit(ip(9)).is_some());
    }

    #[test]
    fn one_address_takes_the_places_of_its_own_alone() {
        let all = Arc::new(Connections::new(Places { all: 4, per_address: 2 }));
        let other = all.admit(ip(7)).unwrap();
        let mine = [all.admit(ip(1)).unwrap(), all.admit(ip(1)).unwrap()];
        let mapped = all.admit("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!((left(&other), left(&mine[0]), left(&mine[1])), (false, true, false));
        mine[1].begin();
        mapped.begin();
        assert!(all.admit(ip(1)).is_none());
        assert!(all.admit(ip(2)).is_some());
    }
}
