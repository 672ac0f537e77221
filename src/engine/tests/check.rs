//! One function for transcripts: this input has exactly these effects.

use super::world::*;
use std::collections::BTreeMap;
use tidegate_types::event::*;
use tidegate_types::*;

/// A world that records every effect of the last input as a line of text.
pub(super) struct Script {
    pub(super) w: World,
    names: BTreeMap<u64, String>,
}

impl Script {
    /// A fresh store, both connections up, no work left.
    pub(super) fn new(settings: Settings) -> Self {
        let mut w = World::new(settings);
        w.log = Some(vec![]);
        Script { w, names: BTreeMap::new() }
    }

    /// Hands the input over and expects exactly these effects, in this order. Times are ms after [`T0`]; reads, and
    /// what the store keeps of queues, are left out.
    pub(super) fn check(&mut self, input: Input, expected: &[&str]) {
        self.w.input(input);
        self.expect(expected);
    }

    /// Lets time pass and calls the engine.
    pub(super) fn after(&mut self, ms: u64, expected: &[&str]) {
        self.w.now.wall += ms;
        self.w.now.mono += ms;
        self.check(Input::Tick, expected);
    }

    /// Lets the store do all its work.
    pub(super) fn stored(&mut self, expected: &[&str]) {
        self.w.drain_jobs();
        self.expect(expected);
    }

    /// Delivers these requests.
    pub(super) fn requests(&mut self, items: Vec<NewItem>, expected: &[&str]) {
        self.w.send(items);
        self.expect(expected);
    }

    /// Settles the n-th batch in flight.
    pub(super) fn settled(&mut self, nth: usize, outcome: Outcome, expected: &[&str]) {
        self.w.settle(nth, outcome);
        self.expect(expected);
    }

    /// A command from within this process.
    pub(super) fn command(&mut self, number: u64, command: Command, expected: &[&str]) {
        self.check(Input::Commands(vec![(Asker::Local(number), command)]), expected);
    }

    fn expect(&mut self, expected: &[&str]) {
        let calls = self.w.log.as_mut().map(std::mem::take).unwrap_or_default();
        let lines: Vec<String> = calls.iter().flat_map(|call| self.lines(call)).collect();
        assert_eq!(lines, expected);
    }

    fn lines(&mut self, call: &Call) -> Vec<String> {
        for op in &call.ops {
            if let Op::Put { item, .. } = op {
                let name = item.content.as_ref().map(|content| text(content)).unwrap_or_default();
                self.names.insert(item.key.seq, name);
            }
        }
        let mut lines: Vec<String> = call.ops.iter().filter_map(|op| self.op(op)).collect();
        lines.extend(call.acks.iter().map(|ack| {
            let tag = ack.delivery.tag;
            if ack.multiple {
                format!("ack up to {tag}")
            } else {
                format!("ack {tag} alone")
            }
        }));
        lines.extend(call.publishes.iter().map(publish));
        lines.extend(call.replies.iter().map(|reply| match reply.asker {
            Asker::Local(number) => format!("answer {number}: {}", answer(&reply.answer)),
            Asker::Remote { delivery, .. } => {
                format!("answer to {}: {}", delivery.tag, answer(&reply.answer))
            }
        }));
        lines
    }

    fn name(&self, seq: u64) -> &str {
        self.names.get(&seq).map_or("?", String::as_str)
    }

    fn op(&self, op: &Op) -> Option<String> {
        let line = match op {
            Op::Put { item, .. } => {
                let dead = item
                    .dead
                    .as_ref()
                    .map_or(String::new(), |dead| format!(" dead {}", dead.reason.as_str()));
                format!("put {} due {}{dead}", self.name(item.key.seq), moment(item.key.due))
            }
            Op::Delete { place, .. } => format!("delete {}", self.name(place.key.seq)),
            Op::Move { from, to, standing, .. } => {
                let attempts = standing.attempts;
                let dead = standing
                    .dead
                    .as_ref()
                    .map_or(String::new(), |dead| format!(" dead {}", dead.reason.as_str()));
                format!(
                    "move {} due {} attempts {attempts}{dead}",
                    self.name(from.key.seq),
                    moment(to.key.due)
                )
            }
            Op::PutWindow(row) => {
                format!("window {} of {} until {}", row.customer, row.count, moment(row.end))
            }
            Op::DeleteWindow { customer, .. } => format!("no window {customer}"),
            Op::Close(row) => {
                let first = self.name(row.window);
                format!("closed {first}'s at {} by {}", moment(row.due), row.cause.as_str())
            }
            Op::Remember { ended, .. } => format!("remember {}", end(&ended.end)),
            Op::PutHeld(row) => format!("held {} until {:?}", row.customer, row.until.map(moment)),
            Op::Index { .. } | Op::PutQueue(_) | Op::BeginBucket(_) => return None,
        };
        Some(line)
    }
}

fn moment(wall: u64) -> u64 {
    wall - T0
}

fn end(end: &End) -> String {
    match end {
        End::Sent(_) => "sent".into(),
        End::Cancelled => "cancelled".into(),
        End::CancelledAgain => "cancelled again".into(),
        End::Dead(dead) => format!("dead {}", dead.reason.as_str()),
    }
}

fn publish(batch: &Batch) -> String {
    let names: Vec<String> = batch.items.iter().map(name).collect();
    let customer = batch.customer.as_deref().map_or(String::new(), |customer| format!("/{customer}"));
    let to = match &batch.dead {
        Some(dead) => format!("letter {}", dead.reason.as_str()),
        None => format!("publish {}{customer}", batch.application),
    };
    let alone = if batch.alone { " alone" } else { "" };
    format!(
        "{to} [{}] due {} by {} attempt {}{alone}",
        names.join(" "),
        moment(batch.due),
        batch.closed_by.as_str(),
        batch.attempt
    )
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Cancelled { count, in_flight: 0 } => format!("cancelled {count}"),
        Answer::Cancelled { count, in_flight } => format!("cancelled {count}, {in_flight} in flight"),
        Answer::Ended(ended) => end(&ended.end),
        Answer::Found(listed) => listed.stage.as_str().into(),
        Answer::Flushed(count) => format!("flushed {count}"),
        Answer::Counted { waiting, in_flight, parked, .. } => {
            format!("{waiting} wait, {in_flight} fly, {parked} parked")
        }
        Answer::Until { until: None, changed } => format!("paused, changed {changed}"),
        Answer::Done { changed } => format!("done, changed {changed}"),
        other => format!("{other:?}"),
    }
}
