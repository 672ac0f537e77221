//! What a repeated command would do to requests and commands behind it.
//!
//! A command by message is unacked until its answer is confirmed or given up. If the connection is lost
//! before, the broker delivers the command again, and it is executed again. A cancel would then take a
//! request that came behind it, and a pause would undo the resume behind it. The broker delivers these again
//! as well, unless they were acked in between, and then nothing would bring them back. So they become safe
//! only with the commands before them.

use super::mutant::{mutated, Mutant};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use tidegate_types::{Command, CustomerOf, Identity, NewItem};

/// What a command changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CommandSubject {
    /// The item of an id.
    Id(Identity),
    /// The items of a customer.
    Customer(Box<str>, Box<str>),
    /// The pause or the rate of an application.
    Pace(Box<str>),
    /// The pause of a customer.
    Hold(Box<str>, Box<str>),
}

impl CommandSubject {
    /// Whether a later command undoes an earlier one. Commands about items need no order: a cancel takes no
    /// less if it comes again, and one that waits for an outcome is not to hold up the next.
    fn is_undone(&self) -> bool {
        matches!(self, CommandSubject::Pace(_) | CommandSubject::Hold(..))
    }
}

/// The deliveries that are not safe and concern one subject, by their tags.
#[derive(Debug, Default)]
struct CommandOrder {
    commands: BTreeSet<u64>,
    /// What came behind one of them, in order.
    behind: VecDeque<u64>,
}

/// The commands of one connection that are not safe.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    orders: BTreeMap<CommandSubject, CommandOrder>,
    /// What they change, by their tags.
    subjects: BTreeMap<u64, Vec<CommandSubject>>,
}

impl Repeats {
    /// A command has come in with this tag. Returns how many times [`Repeats::ended`] will name it.
    pub(crate) fn command(&mut self, tag: u64, command: &Command) -> u32 {
        let (subjects, mut count) = (subjects_of(command), 0);
        for subject in &subjects {
            let order = self.orders.entry(subject.clone()).or_default();
            if subject.is_undone() && !order.commands.is_empty() {
                order.behind.push_back(tag);
                count += 1;
            }
            order.commands.insert(tag);
        }
        if !subjects.is_empty() {
            self.subjects.insert(tag, subjects);
        }
        count
    }

    /// As [`Repeats::command`], for a message with these requests.
    pub(crate) fn requests(&mut self, tag: u64, items: &[NewItem]) -> u32 {
        if self.orders.is_empty() || mutated(Mutant::RepeatTakesAcked) {
            return 0;
        }
        let subjects = items.iter().flat_map(|item| {
            let customer = item.customer.as_ref();
            let customer =
                customer.map(|name| CommandSubject::Customer(item.application.clone(), name.clone()));
            [item.identity.map(CommandSubject::Id), customer]
        });
        let mut count = 0;
        for subject in subjects.flatten().collect::<BTreeSet<CommandSubject>>() {
            if let Some(order) = self.orders.get_mut(&subject) {
                order.behind.push_back(tag);
                count += 1;
            }
        }
        count
    }

    /// The delivery with this tag is safe. Returns the tags of those that came behind it, if it was a
    /// command, and behind no other.
    pub(crate) fn ended(&mut self, tag: u64) -> Vec<u64> {
        let mut freed = Vec::new();
        for subject in self.subjects.remove(&tag).unwrap_or_default() {
            let Some(order) = self.orders.get_mut(&subject) else { continue };
            order.commands.remove(&tag);
            let first = order.commands.first().copied();
            let is_free = |behind: &u64| first.is_none_or(|first| *behind <= first);
            let count = order.behind.iter().take_while(|behind| is_free(behind)).count();
            freed.extend(order.behind.drain(..count));
            if first.is_none() {
                self.orders.remove(&subject);
            }
        }
        freed
    }
}

/// Empty: the command changes nothing, or nothing for what comes behind it.
fn subjects_of(command: &Command) -> Vec<CommandSubject> {
    let customer = |of: &CustomerOf| (of.application.clone(), of.customer.clone());
    match command {
        Command::Cancel(target) | Command::Reschedule(target, _) => {
            target.identities().into_iter().flatten().map(CommandSubject::Id).collect()
        }
        Command::CancelAll(of) => {
            let (application, customer) = customer(of);
            vec![CommandSubject::Customer(application, customer)]
        }
        Command::Pause(application, _) | Command::Resume(application) | Command::Slow(application, ..) => {
            vec![CommandSubject::Pace(application.clone())]
        }
        Command::PauseCustomer(of, _) | Command::ResumeCustomer(of) => {
            let (application, customer) = customer(of);
            vec![CommandSubject::Hold(application, customer)]
        }
        // No message is one of these.
        Command::CancelSelected(_) | Command::DropParked(_) => Vec::new(),
        Command::Lookup(_)
        | Command::Count(_)
        | Command::CountSelected(_)
        | Command::Flush(_)
        | Command::FlushAll(_)
        | Command::List(_)
        | Command::TimelineQuery(_)
        | Command::Retry(_) => Vec::new(),
    }
}
