//! A node is lost under load, or cut off from the database: the others take its shards.
//!
//! Judges promises 3 and 11.

use super::{started, Claim, Flow, Nodes, LEASE_S};
use crate::shards::{applications, home, in_order, LIMIT};
use std::time::{Duration, Instant};
use tidegate_harness::{alone, best_of_three, wait_until, Ledger, Proxy, Welcome};

/// Panics if something is lost, or repeated without a fault that explains it.
fn judge(ledger: &Ledger) {
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    assert!(report.unexplained.is_empty(), "{:?}", report.unexplained);
}

/// Shards that have been with one node all the time, by their numbers.
fn unmoved(before: &[Claim], after: &[Claim]) -> Vec<bool> {
    before.iter().zip(after).map(|(before, after)| before == after).collect()
}

#[test]
fn a_node_that_loses_the_database_for_a_while_gets_its_part_again_and_nothing_is_lost() {
    let Some(mut nodes) = Nodes::stopped("nodes-cut") else { return };
    let proxy = Proxy::start(nodes.server.address());
    nodes.able.push(started(&nodes.config.clone().text("store.uri", &nodes.server.uri_by(&proxy))));
    nodes.join();
    let before = nodes.even();
    let flow = Flow::begin(&nodes, "cut");
    flow.ledger.fault();
    proxy.welcome(Welcome::Refuse);
    proxy.cut(true);
    let cut = nodes.able.remove(0);
    let alone = nodes.even();
    flow.ledger.healed();
    let stayed = unmoved(&before, &alone).into_iter().filter(|stays| *stays).count();
    assert_eq!(stayed, 2, "the shards of the other node stay: {before:?} {alone:?}");
    wait_until("it is not ready", LIMIT, || cut.ask("GET", "/readyz").0 == 503);
    assert_eq!(cut.ask("GET", "/livez").0, 200);
    flow.goes_on();
    proxy.heal();
    nodes.able.push(cut);
    nodes.even();
    flow.goes_on();
    judge(&flow.end());
}

mod alone {
    use super::*;

    /// Lease of these nodes, and time for the others to notice and to claim.
    const BOUND: Duration = Duration::from_secs(LEASE_S + 15);

    fn round(round: u32) -> Result<(), String> {
        let Some(mut nodes) = Nodes::start(&format!("nodes-killed-{round}"), 3) else { return Ok(()) };
        let before = nodes.even();
        let flow = Flow::begin(&nodes, "kill");
        // The node that has two.
        let of = |claim: &&Claim| before.iter().filter(|other| other.owner == claim.owner).count() == 2;
        let owner = before.iter().find(of).map(|claim| claim.owner.clone()).expect("2 + 1 + 1");
        let names = applications(2);
        let has = |name: &&String| before[usize::from(home(name))].owner == owner;
        let place = nodes.place_of(names.iter().find(has).expect("two in each shard"), &before);
        let mut dead = nodes.able.swap_remove(place);
        let begun = Instant::now();
        flow.ledger.fault();
        dead.kill9();
        let after = nodes.even();
        let taken = begun.elapsed();
        flow.ledger.healed();
        flow.goes_on();
        let ledger = flow.end();
        judge(&ledger);
        let stays = unmoved(&before, &after);
        assert_eq!(stays.iter().filter(|stays| **stays).count(), 2, "{before:?} {after:?}");
        // The order of each customer is kept where nothing has moved.
        let stays = |id: &String| {
            let is_of = |name: &&String| id.starts_with(&format!("kill-{name}-"));
            names.iter().find(is_of).is_some_and(|name| stays[usize::from(home(name))])
        };
        in_order(&ledger.arrivals().into_iter().filter(stays).collect::<Vec<_>>(), "kill");
        if taken <= BOUND {
            Ok(())
        } else {
            Err(format!("the others have all shards after {taken:?} of {BOUND:?}"))
        }
    }

    #[test]
    fn two_nodes_have_the_shards_of_a_killed_third_one_in_time_and_nothing_is_lost() {
        alone();
        best_of_three(round);
    }
}
