//! What producers and operators ask for.

use super::super::world::*;
use super::{Asked, Cancel, Sim, APPS};
use crate::engine::event::*;
use crate::engine::types::*;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Sim {
    pub(super) fn request(&mut self) {
        if self.pick(20) == 0 {
            return self.request_rejected();
        }
        let parts = if self.pick(5) == 0 { 1 + self.pick(4) } else { 1 };
        let items = (0..parts).map(|_| self.new_item()).collect();
        self.world.queue.push(Pending { body: RequestBody::Items(items), tag: None, seen: false });
    }

    fn request_rejected(&mut self) {
        let id = self.asked.len().to_string();
        let content = Content { properties: vec![], body: id.as_bytes().to_vec(), json: false };
        let asked = Asked {
            application: "a".into(),
            customer: None,
            not_before: None,
            expiry: None,
            poison: false,
            rejected: true,
            id: None,
            doomed: false,
        };
        self.asked.insert(id, asked);
        let dead = Dead { reason: Reason::Invalid, error: "x-delay: not a number".into() };
        let rejected = Rejected {
            application: Some("a".into()),
            customer: None,
            dead,
            content: Arc::new(content),
            reply_to: None,
        };
        self.world.queue.push(Pending {
            body: RequestBody::Rejected(Box::new(rejected)),
            tag: None,
            seen: false,
        });
    }

    fn new_item(&mut self) -> NewItem {
        let id = self.asked.len().to_string();
        let application = APPS[self.pick(4) as usize];
        let customer = ["", "x", "y", "z"][self.pick(4) as usize];
        let mut new = item(application, customer, &id);
        let mut not_before = None;
        let wall = self.world.now.wall;
        if self.pick(2) == 0 {
            let spread = [30, 3_000, 60_000, 400_000][self.pick(4) as usize];
            let due = (wall + self.pick(spread)).saturating_sub(20);
            not_before = Some(due);
            new = at(due, new);
        }
        if self.pick(8) == 0 {
            let spread = [50, 5_000, 100_000][self.pick(3) as usize];
            new.expiry = Some(wall + self.pick(spread));
        }
        if self.pick(4) == 0 {
            new = self.named(new);
        }
        let poison = !self.calm && self.pick(60) == 0;
        let asked = Asked {
            application: application.into(),
            customer: new.customer.as_deref().map(str::to_string),
            not_before,
            expiry: new.expiry,
            poison,
            rejected: false,
            id: new.identity,
            doomed: false,
        };
        self.asked.insert(id, asked);
        new
    }

    fn named(&mut self, new: NewItem) -> NewItem {
        let number = self.pick(self.ids);
        let rules = [
            DuplicateRule::Keep,
            DuplicateRule::Replace,
            DuplicateRule::Earliest,
            DuplicateRule::Latest,
            DuplicateRule::Reject,
        ];
        let rule = if number < self.ids / 2 { DuplicateRule::Keep } else { rules[self.pick(5) as usize] };
        with_id(&number.to_string(), rule, new)
    }

    /// A command from within the process, or from the ingest queue.
    pub(super) fn command(&mut self) {
        let application = APPS[self.pick(4) as usize];
        let number = self.pick(self.ids);
        let of = || CustomerOf { application: application.into(), customer: "x".into() };
        let target = target(application, &number.to_string());
        let command = match self.pick(24) {
            0..8 => return self.cancel(target),
            8..12 => Command::Lookup(target),
            12..14 => Command::Count(of()),
            14..16 => Command::Flush(of()),
            16..19 => {
                let filter = Filter { limit: 1 + self.pick(20) as usize, ..Filter::default() };
                Command::List(filter)
            }
            19 if !self.calm => {
                self.paused.insert(application);
                Command::Pause(application.into())
            }
            20 => {
                self.paused.remove(application);
                Command::Resume(application.into())
            }
            21 => {
                self.doom(|asked| asked.application == application && asked.customer.as_deref() == Some("x"));
                Command::CancelAll(of())
            }
            22 if self.pick(4) == 0 => {
                self.doom(|asked| asked.application == application);
                Command::DropParked(application.into())
            }
            _ => Command::Retry(application.into()),
        };
        self.ask(command);
    }

    pub(super) fn ask(&mut self, command: Command) -> u64 {
        let asker = self.next_asker;
        self.next_asker += 1;
        self.world.input(Input::Commands(vec![(Asker::Local(asker), command)]));
        asker
    }

    fn doom(&mut self, is_meant: impl Fn(&Asked) -> bool) {
        self.asked.values_mut().filter(|asked| is_meant(asked)).for_each(|asked| asked.doomed = true);
    }

    fn cancel(&mut self, target: Target) {
        let identity = target.identity;
        self.doom(|asked| asked.id == Some(identity));
        if self.pick(4) == 0 {
            // It may be executed again after a crash, and then meets what came behind it; which comes again, too.
            let body = RequestBody::Command(Command::Cancel(target), None);
            self.world.queue.push(Pending { body, tag: None, seen: false });
            return;
        }
        let mut waiting = BTreeSet::new();
        for pending in &self.world.queue {
            if let RequestBody::Items(items) = &pending.body {
                waiting.extend(
                    items.iter().map(|item| String::from_utf8_lossy(&item.content.body).into_owned()),
                );
            }
        }
        let is_meant = |(id, asked): (&String, &Asked)| {
            (asked.id == Some(identity) && !waiting.contains(id)).then(|| id.clone())
        };
        let stored = self.asked.iter().filter_map(is_meant).collect();
        let asker = self.ask(Command::Cancel(target));
        self.cancels.insert(asker, Cancel { identity, stored });
    }
}
