//! Customers that are held back: effects of commands, and which batches may leave.

use super::commands::Asked;
use super::model::{Life, Model};
use super::Sim;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_fake_store::FakeStore;
use tidegate_types::event::FOR_EVER;
use tidegate_types::*;

/// Customers of an application that are held back.
#[derive(Default)]
pub(super) struct HeldBack {
    /// The end of each hold, UTC ms.
    until: BTreeMap<String, u64>,
    /// Number of commands under way.
    changing: BTreeMap<String, u32>,
}

impl HeldBack {
    fn is_held(&self, customer: &str) -> bool {
        self.until.contains_key(customer)
    }

    fn is_changing(&self, customer: &str) -> bool {
        self.changing.get(customer).is_some_and(|n| *n > 0)
    }

    pub(super) fn tell_time(&mut self, wall: u64) {
        self.until.retain(|_, until| *until > wall);
    }
}

impl Sim {
    /// Ends all pauses and rates of applications, and all holds of customers.
    pub(super) fn let_all_go(&mut self) {
        for application in self.apps.clone() {
            self.ask(Command::Resume(application.as_str().into()));
            self.ask(Command::Slow(application.as_str().into(), None, None));
            let held = self.model.apps.get(&application).map(|app| &app.held);
            let held = held.into_iter().flat_map(|held| held.until.keys().chain(held.changing.keys()));
            for customer in held.cloned().collect::<BTreeSet<String>>() {
                let of = CustomerOf { application: application.as_str().into(), customer: customer.into() };
                self.ask(Command::ResumeCustomer(of));
            }
        }
    }

    pub(super) fn any_hold(&mut self, of: CustomerOf) -> Command {
        match self.looks.draw() % 3 {
            0 => Command::ResumeCustomer(of),
            _ => Command::PauseCustomer(of, self.any_end()),
        }
    }
}

impl Model {
    pub(super) fn note_holding(&mut self, command: &Command) {
        if let Command::PauseCustomer(of, _) | Command::ResumeCustomer(of) = command {
            *self.app(&of.application).held.changing.entry(of.customer.to_string()).or_default() += 1;
        }
    }

    /// Whether its customer may be held back.
    pub(super) fn may_be_held(&self, life: &Life) -> bool {
        let new = &self.asks[life.ask].new;
        let held = &self.apps[&*new.application].held;
        new.customer.as_deref().is_some_and(|customer| held.is_held(customer) || held.is_changing(customer))
    }

    /// A batch is formed, so its customer must not be held back.
    pub(super) fn check_held(&self, batch: &Batch) {
        let Some(customer) = batch.customer.as_deref() else { return };
        let held = &self.apps[&*batch.application].held;
        assert!(
            !held.is_held(customer) || held.is_changing(customer),
            "published while {customer} is held back"
        );
    }

    pub(super) fn judge_hold(&mut self, asked: &Asked, of: &CustomerOf, answer: &Answer) {
        let since = self.walls.iter().rev().take_while(|(call, _)| *call >= asked.call);
        let wall = since.map(|(_, wall)| *wall).max().unwrap_or(0);
        let most = self.settings.customers.min(self.settings.max_applications);
        let held = &mut self.app(&of.application).held;
        let customer = of.customer.to_string();
        *held.changing.get_mut(&customer).expect("it was asked for") -= 1;
        match (answer, &asked.command) {
            (Answer::Until { until, .. }, Command::PauseCustomer(..)) => {
                held.until.insert(customer, until.unwrap_or(FOR_EVER));
            }
            (Answer::Done { .. }, Command::ResumeCustomer(_)) => drop(held.until.remove(&customer)),
            // Its end passed while it was queued.
            (Answer::Rejected(_), Command::PauseCustomer(_, Some(_))) => {}
            (Answer::Unavailable(_), Command::PauseCustomer(..)) => {
                let all: usize = self.apps.values().map(|app| app.held.until.len()).sum();
                assert!((all + self.apps.len()) as u64 >= most, "{answer:?}");
                return;
            }
            _ => panic!("{answer:?}"),
        }
        held.tell_time(wall);
    }

    /// An answered hold is durable, and only a command changes it before its end.
    pub(super) fn restore_held(&mut self, store: &FakeStore) {
        let (durable, wall) = (self.durable, self.latest_wall);
        // Its end may not have been written at the kill, and the clock may have been set back.
        let ended = |until: u64, walls: &[u64]| walls.iter().any(|wall| *wall >= until);
        let walls: Vec<u64> = self.walls.iter().map(|(_, wall)| *wall).collect();
        for (name, app) in &mut self.apps {
            let of_it = store.held.iter().filter(|((application, _), _)| **application == **name);
            let until = of_it.map(|((_, customer), until)| (customer.to_string(), *until)).collect();
            let mut found = HeldBack { until, ..HeldBack::default() };
            found.tell_time(wall);
            app.held.tell_time(wall);
            let before = std::mem::replace(&mut app.held, found);
            let sure = |customer: &&String| durable && !before.is_changing(customer);
            for customer in before.until.keys().chain(app.held.until.keys()).filter(sure) {
                let (was, is) = (before.until.get(customer), app.held.until.get(customer));
                let over = is.is_some_and(|until| ended(*until, &walls));
                assert!(was == is || over, "{customer} of {name}: {was:?}, now {is:?}");
            }
        }
    }
}
