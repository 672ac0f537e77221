//! All nodes are restarted, one after the other.
//!
//! Judges promises 3 and 11.

use super::{Flow, Nodes};
use crate::shards::{end, LIMIT};

#[test]
fn a_rolling_restart_of_three_nodes_under_load_loses_nothing_and_repeats_nothing() {
    let Some(mut nodes) = Nodes::start("nodes-rolling", 3) else { return };
    let flow = Flow::begin(&nodes, "roll");
    for place in 0..3 {
        let node = &mut nodes.able[place];
        end(node);
        node.start_again();
        nodes.even();
        flow.goes_on();
    }
    flow.end().settle(LIMIT).assert_exact();
}
