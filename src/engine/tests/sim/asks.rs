//! Requests of producers and commands of operators in a world.

use super::super::world::*;
use super::model::{Ask, Message};
use super::Sim;
use std::sync::Arc;
use tidegate_types::event::Input;
use tidegate_types::*;

pub(super) const RULES: [DuplicateRule; 5] = [
    DuplicateRule::Keep,
    DuplicateRule::Replace,
    DuplicateRule::Earliest,
    DuplicateRule::Latest,
    DuplicateRule::Reject,
];

/// Most entries of a message.
pub(super) const ENTRIES: u64 = 4;

impl Sim {
    /// Sends a message with one or several entries.
    pub(super) fn request(&mut self) {
        let rejected = self.pick(30) == 0;
        let parts = if !rejected && self.pick(5) == 0 { 1 + self.pick(ENTRIES) } else { 1 };
        let number = self.world.sent + 1;
        let (mut items, mut asks) = (vec![], vec![]);
        for _ in 0..parts {
            let ask = self.new_ask(number, rejected);
            asks.push(self.model.asks.len());
            items.push(ask.new.clone());
            self.model.asks.push(ask);
        }
        let body = if rejected {
            let dead = Dead { reason: Reason::Invalid, error: "x-delay: not a number".into() };
            RequestBody::Rejected(Box::new(items.remove(0).rejected(dead)))
        } else if self.plan.foreign && self.toss(3) == 0 {
            RequestBody::Elsewhere(items)
        } else {
            RequestBody::Items(items)
        };
        self.mail(body, asks, None);
        if self.plan.foreign && self.toss(6) == 0 {
            // A message without anything for this shard.
            self.mail(RequestBody::Elsewhere(vec![]), vec![], None);
        }
    }

    pub(super) fn mail(&mut self, body: RequestBody, asks: Vec<usize>, command: Option<u64>) {
        let taken = vec![None; asks.len()];
        let forwarded = matches!(body, RequestBody::Elsewhere(_)).then_some(false);
        let number = self.world.enqueue(body);
        let message = Message {
            asks,
            command,
            delivered: None,
            safe_since: None,
            taken,
            answered: false,
            forwarded,
            acked: false,
        };
        self.model.messages.insert(number, message);
    }

    pub(super) fn any_app(&mut self) -> String {
        let n = self.pick(self.apps.len() as u64) as usize;
        self.apps[n].clone()
    }

    pub(super) fn any_customer(&mut self) -> String {
        let n = self.pick(self.plan.customers);
        format!("c{n}")
    }

    fn new_ask(&mut self, message: usize, rejected: bool) -> Ask {
        let payload = self.model.asks.len().to_string();
        let application = self.any_app();
        let customer = if self.pick(4) == 0 { String::new() } else { self.any_customer() };
        let mut new =
            NewItem { weight: 20 + self.pick(200) as u32, ..item(&application, &customer, &payload) };
        let wall = self.world.now.wall;
        if self.pick(2) == 0 {
            let spread = [30, 3_000, 60_000, 400_000][self.pick(4) as usize];
            new.at = Some((wall + self.pick(spread)).saturating_sub(20));
        }
        if self.pick(8) == 0 {
            let spread = [50, 5_000, 100_000][self.pick(3) as usize];
            new.expiry = Some(wall + self.pick(spread));
        }
        if self.plan.dying && self.world.sent < self.plan.crowd {
            new.at = Some(wall + 5_000 + self.pick(20_000));
            new.expiry = Some(wall + 4_000);
        }
        if self.pick(3) == 0 {
            let id = self.pick(self.plan.ids).to_string();
            let rule = RULES[self.pick(5) as usize];
            new = with_id(&id, rule, new);
        }
        let poison = self.plan.poison && self.pick(60) == 0;
        let poison_dead = self.plan.poison && self.pick(60) == 0;
        if rejected {
            new.identity = None;
        }
        Ask { poison, poison_dead, rejected, ..self.plain_ask(message, new) }
    }

    /// A request that is valid, and whose item the broker accepts.
    pub(super) fn plain_ask(&self, message: usize, new: NewItem) -> Ask {
        Ask {
            message,
            new,
            poison: false,
            poison_dead: false,
            rejected: false,
            arrivals: 0,
            letters: 0,
            excuses: vec![],
            recognised: false,
        }
    }

    /// A target named by a producer's id, by an assigned id, or by an id that no item has.
    fn any_target(&mut self) -> Target {
        let application = self.any_app();
        if self.pick(3) == 0 && !self.model.lives.is_empty() {
            let n = self.pick(self.model.lives.len() as u64) as usize;
            let life = self.model.lives.values().nth(n).expect("one of them");
            if !life.identity.is_given() {
                let elsewhere = self.model.asks[life.ask].new.application.to_string();
                let (key, due) = (life.key(), life.accepted_due);
                let application = if self.pick(8) == 0 { application } else { elsewhere };
                return assigned(&application, key, due);
            }
        }
        let id = self.pick(self.plan.ids).to_string();
        target(&application, &id)
    }

    /// The end of a pause: none, or a moment soon.
    pub(super) fn any_end(&mut self) -> Option<Moment> {
        let ms = self.looks.draw() % 4_000;
        match self.looks.draw() % 4 {
            0 => Some(Moment::After(ms)),
            1 => Some(Moment::At(self.world.now.wall + ms)),
            _ => None,
        }
    }

    pub(super) fn command(&mut self) {
        let application = self.any_app();
        let customer = self.any_customer();
        let of = CustomerOf { application: application.as_str().into(), customer: customer.as_str().into() };
        let command = match self.pick(30) {
            0..7 => Command::Cancel(self.any_target()),
            7..12 => Command::Lookup(self.any_target()),
            12..15 if self.plan.holds => self.any_hold(of),
            12..15 if self.plan.selects => {
                Command::CountSelected(self.any_selection(&application, &customer))
            }
            12..15 => Command::Count(of),
            15..18 if self.plan.flushes => Command::FlushAll(application.as_str().into()),
            15..18 => Command::Flush(of),
            18..21 => Command::List(self.any_filter(&application, &customer)),
            21 if self.plan.pauses => Command::Pause(application.as_str().into(), self.any_end()),
            22 => Command::Resume(application.as_str().into()),
            27 if self.plan.rates => self.any_rate(&application),
            23..25 if self.plan.selects => {
                Command::CancelSelected(self.any_selection(&application, &customer))
            }
            23..26 => Command::CancelAll(of),
            26 if self.pick(3) == 0 => Command::DropParked(application.as_str().into()),
            _ => Command::Retry(application.as_str().into()),
        };
        let by_message = matches!(
            command,
            Command::Cancel(_) | Command::CancelAll(_) | Command::Lookup(_) | Command::Flush(_)
        );
        if by_message && self.pick(4) == 0 {
            return self.mail_command(command);
        }
        self.ask(command);
    }

    /// Lets a read beside the others return, or a client leave.
    pub(super) fn look_on(&mut self) {
        match self.looks.draw() % 20 {
            0 => self.leave(),
            1..8 => drop(self.world.do_late()),
            _ => {}
        }
    }

    /// The client of the oldest command from within the process no longer waits for its answer.
    fn leave(&mut self) {
        let oldest = self.model.commands.iter().find(|(_, asked)| asked.local && !asked.left);
        let oldest = oldest.map(|(number, _)| *number);
        oldest.into_iter().for_each(|number| self.world.input(Input::Left(vec![number])));
    }

    fn mail_command(&mut self, command: Command) {
        let number = self.next_command;
        self.next_command += 1;
        self.model.mailed.insert(number, command.clone());
        let told = self.pick(2) == 0;
        if told {
            self.model.replies_to.insert(number);
        }
        let reply_to = told.then(|| ReplyTo { queue: "asker".into(), correlation_id: None });
        self.mail(RequestBody::Command(command, reply_to), vec![], Some(number));
    }

    fn any_filter(&mut self, application: &str, customer: &str) -> Filter {
        let from = if self.pick(3) == 0 { self.world.now.wall } else { 0 };
        let state =
            [None, None, Some(ListedStage::Waiting), Some(ListedStage::InFlight), Some(ListedStage::Parked)];
        let named = self.pick(3) > 0;
        Filter {
            application: named.then(|| application.into()),
            customer: (named && self.pick(2) == 0).then(|| customer.into()),
            state: state[self.pick(5) as usize],
            from: Key::at(from),
            from_shard: 0,
            until: (self.pick(3) == 0).then(|| from + 50_000),
            limit: 1 + self.pick(20) as usize,
        }
    }

    pub(super) fn ask(&mut self, command: Command) -> u64 {
        let number = self.next_command;
        self.next_command += 1;
        self.world.input(tidegate_types::event::Input::Commands(vec![(Asker::Local(number), command)]));
        number
    }
}

/// Random settings of one application.
pub(super) fn app_settings(draw: &mut dyn FnMut(u64) -> u64, limits: bool) -> AppSettings {
    let mut one_of = |list: &[u64]| list[draw(list.len() as u64) as usize];
    AppSettings {
        window: one_of(&[50, 3_000, 30_000, 90_000]),
        quiet: one_of(&[0, 20, 2_000]),
        align: one_of(&[0, 0, 0, 1]) == 1,
        coalesce: one_of(&[0, 100]),
        max_items: one_of(&[1, 3, 5, 1_000]) as u32,
        max_bytes: one_of(&[500, 1_000, 1 << 20]),
        format: [Format::Json, Format::Ndjson, Format::CloudEvents, Format::Passthrough]
            [one_of(&[0, 0, 1, 2, 3]) as usize],
        dedupe_tail: one_of(&[0, 5_000, 600_000]),
        retry: Retry { min: 100, max: 2_000, attempts: one_of(&[0, 0, 3]) as u32 },
        max_waiting: if limits { one_of(&[0, 5, 10]) } else { 0 },
        on_full: [OnFull::Pause, OnFull::FlushEarly, OnFull::DropOldest, OnFull::DropNewest]
            [one_of(&[0, 1, 2, 3]) as usize],
        rate: None,
        burst: 0,
        customer_rate: None,
        customer_burst: 0,
    }
}

pub(super) fn shared(settings: AppSettings) -> Arc<AppSettings> {
    Arc::new(settings)
}
