//! Decisions about requests: the contract's tables of duplicates and limits, for all states that may have been true.

use super::model::*;
use tidegate_types::*;

impl Model {
    /// Checks an accepted request by the contract's table: some state since its delivery must allow it.
    pub(super) fn judge_accepted(&mut self, ask: usize, identity: Identity, new_due: u64) {
        let (known, redelivered, from_wall) = self.seen_by(ask, identity);
        let new = &self.asks[ask].new;
        let rule = new.on_duplicate;
        let own = new.at.is_some();
        let unwritten = |seq: u64| self.lives[&seq].put.is_none() && self.is_hurried(ask);
        let allowed = known.iter().any(|known| match *known {
            Known::Nobody => true,
            Known::Waiting(seq) if self.keeps_its_time(seq, ask) && !self.is_retimed_since(seq, ask) => false,
            Known::Waiting(seq) => match rule {
                DuplicateRule::Replace => true,
                DuplicateRule::Earliest | DuplicateRule::Latest if self.is_tied(seq, ask) => false,
                DuplicateRule::Earliest => {
                    !own || new_due < self.lives[&seq].due || self.was_due_otherwise(seq, ask)
                }
                DuplicateRule::Latest => {
                    !own || new_due > self.lives[&seq].due || self.was_due_otherwise(seq, ask)
                }
                // It was decided before the engine handled the end of an attempt.
                DuplicateRule::Keep | DuplicateRule::Reject => {
                    self.may_be_unlooked_at(self.lives[&seq].waiting_since) && unwritten(seq)
                }
            },
            Known::Out(seq) => self.lives[&seq].superseded || unwritten(seq),
            Known::Ended(seq) => {
                let (_, may_not) = self.remembered(seq, from_wall);
                let again = redelivered && self.is_same(seq, ask);
                match self.lives[&seq].state {
                    _ if may_not => true,
                    State::Sent if self.is_another_try(seq, ask) => true,
                    State::Sent => matches!(rule, DuplicateRule::Replace | DuplicateRule::Latest) && !again,
                    State::Cancelled => {
                        !again || self.lives[&seq].taken_again || self.cancelled_again(identity)
                    }
                    _ => !again,
                }
            }
        });
        // It may have replaced an earlier queued request, which was never written.
        let replaces = !matches!(rule, DuplicateRule::Keep | DuplicateRule::Reject);
        let before = self.met_pending(ask, identity) || self.came_again.contains(&identity);
        let unseen = replaces && before;
        assert!(allowed || unseen, "{ask} ({rule:?}) was accepted though its id is {known:?}");
        // In order of arrival: no earlier queued entry with the same id is undecided.
    }

    /// Whether it may have been decided before the end of an attempt for which it would wait: a cancel of it, of its
    /// customer, or of the customer of another item with its id came behind it, or more requests waited than may.
    pub(super) fn is_hurried(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        let of_id = |customer: &str| {
            self.asks.iter().any(|other| {
                other.new.identity == new.identity && other.new.customer.as_deref() == Some(customer)
            })
        };
        let known = self.commands.values().chain(self.answered.values()).chain(self.orphaned.values());
        let cancels = |asked: &super::commands::Asked| match &asked.command {
            Command::CancelAll(of) => of.application == new.application && of_id(&of.customer),
            Command::CancelSelected(selection) => {
                let takes = |new: &NewItem| selection.takes_customer(new.customer.as_deref());
                let of_id =
                    self.asks.iter().any(|other| other.new.identity == new.identity && takes(&other.new));
                selection.application == new.application && of_id
            }
            Command::Cancel(target) => Some(target.identity) == new.identity,
            _ => false,
        };
        self.few_wait || known.into_iter().any(cancels)
    }

    /// Whether another request of this id is queued, or accepted and not visible yet.
    pub(super) fn met_pending(&self, ask: usize, identity: Identity) -> bool {
        let is_it = |number: &usize| {
            let message = &self.messages[number];
            let parts = message.asks.iter().zip(&message.taken);
            parts.into_iter().any(|(other, taken)| {
                *other != ask && taken.is_none() && self.asks[*other].new.identity == Some(identity)
            })
        };
        self.open.iter().any(is_it)
    }

    /// Whether both are due with the same window.
    pub(super) fn is_tied(&self, seq: u64, ask: usize) -> bool {
        let (new, old) = (&self.asks[ask].new, &self.asks[self.lives[&seq].ask].new);
        let windowed = new.at.is_none() && new.customer.is_some() && self.is_windowed(&self.lives[&seq]);
        let same = windowed && new.customer == old.customer;
        same && !self.stepped && self.before.is_empty() && self.windows.is_certainly_open(seq)
    }

    /// Whether a redelivered cancel may have ended another item than it was meant for.
    fn cancelled_again(&self, identity: Identity) -> bool {
        let is_it = |asked: &super::commands::Asked| {
            matches!(&asked.command, Command::Cancel(t) if t.identity == identity)
                || matches!(asked.command, Command::CancelAll(_))
        };
        let known = self.answered.values().chain(self.commands.values()).chain(self.orphaned.values());
        known.into_iter().any(|asked| !asked.local && is_it(asked))
    }

    pub(super) fn is_same(&self, seq: u64, ask: usize) -> bool {
        self.asks[self.lives[&seq].ask].new.fingerprint == self.asks[ask].new.fingerprint
    }

    /// Whether it names exactly the batch in which that item was sent, or is in flight.
    fn is_another_try(&self, seq: u64, ask: usize) -> bool {
        let named = self.asks[ask].new.tried.batch;
        named.is_some() && named == self.lives[&seq].batch && !self.is_same(seq, ask)
    }

    /// States that an entry may have met since it was delivered.
    fn seen_by(&self, ask: usize, identity: Identity) -> (Vec<Known>, bool, u64) {
        let message = &self.messages[&self.asks[ask].message];
        let (call, _, _, redelivered) = message.delivered.expect("delivered");
        (self.known_since(identity, call), redelivered, 0)
    }

    /// Checks an entry that left no trace although its message was acked.
    pub(super) fn judge_dropped(&mut self, ask: usize) {
        let new = &self.asks[ask].new;
        let Some(identity) = new.identity else {
            assert!(!self.durable, "{ask} has no id, was acked, and is nowhere");
            let cancelled = self.may_be_cancelled(ask);
            assert!(cancelled, "{ask} was acked, never sent, and nobody cancelled it");
            return;
        };
        let (known, redelivered, _) = self.seen_by(ask, identity);
        let rule = new.on_duplicate;
        // After the clock was set back, the later of two ends need not count as the last.
        let own_end =
            self.stepped_back > 0 && self.lives.values().any(|l| l.ask == ask && !l.state.is_live());
        let allowed = known.iter().any(|known| match *known {
            Known::Nobody => false,
            Known::Waiting(seq) | Known::Out(seq) => {
                let other = self.asks[self.lives[&seq].ask].message;
                // Another message that the broker still has is as safe.
                let kept = other != self.asks[ask].message && !self.messages[&other].acked;
                let life = &self.lives[&seq];
                // An item that was forgotten because its own request comes again exists nowhere else.
                let over = life.state.is_over() && life.state != State::Forgotten;
                let safe = over || life.durable || !self.durable || kept;
                let out = matches!(known, Known::Out(_));
                // An item that may have arrived is awaited as one in flight.
                let hurried = || (out || life.undecided) && self.is_hurried(ask);
                let comes_back = redelivered && self.is_same(seq, ask);
                let drops = match rule {
                    DuplicateRule::Keep => true,
                    // A redelivered request is not refused for its own item where its window has no room.
                    DuplicateRule::Replace => {
                        let waits = || self.keeps_its_time(seq, ask) || self.may_lack_window(ask);
                        comes_back && (hurried() || !out && waits())
                    }
                    DuplicateRule::Earliest | DuplicateRule::Latest => {
                        let drops = rule == DuplicateRule::Earliest || comes_back;
                        drops && hurried() || !out && self.stays(seq, ask)
                    }
                    DuplicateRule::Reject => redelivered,
                };
                // The batch is known once the confirm has come.
                let undecided = matches!(known, Known::Out(_)) && self.is_another_try(seq, ask);
                drops && safe && !undecided
            }
            Known::Ended(seq) => {
                let drops = |seq, from| self.drops_for_an_end(seq, ask, from, own_end);
                let before =
                    || self.end_before(identity, seq).is_some_and(|seq| drops(seq, self.handed_over_at(ask)));
                drops(seq, self.lives[&seq].ended_at) || before()
            }
        });
        let delivered = self.messages[&self.asks[ask].message].delivered;
        let (since, mono) = delivered.map_or((0, self.now.mono), |(call, mono, ..)| (call, mono));
        let unseen = self.ended_unseen(identity, since, &known)
            || redelivered && self.comes_back_unwritten(new, mono, &known)
            || redelivered && self.was_taken_back_unseen(new)
            || self.met_pending(ask, identity)
            || self.lives.values().any(|life| life.identity == identity && life.state == State::Replaced)
            || !self.durable && (self.may_be_cancelled(ask) || self.met_unseen(ask, identity));
        if redelivered && unseen && matches!(rule, DuplicateRule::Replace | DuplicateRule::Latest) {
            self.came_again.insert(identity);
        }
        assert!(
            allowed || unseen,
            "{ask} ({rule:?}, redelivered {redelivered}) was dropped though its id is {known:?}; {new:?}"
        );
    }

    /// Whether it was cancelled before it was visible in that delivery, and comes again.
    fn was_taken_back_unseen(&self, new: &NewItem) -> bool {
        let ends = new.identity.and_then(|identity| self.unwritten_ends.get(&identity));
        let is_own = |ended: &Ended| ended.end == End::Cancelled && ended.fingerprint == new.fingerprint;
        ends.is_some_and(|ends| ends.iter().any(is_own))
    }

    /// Whether the contract's table drops it, for an id with this remembered end, decided at that moment.
    fn drops_for_an_end(&self, seq: u64, ask: usize, from_wall: u64, own_end: bool) -> bool {
        let message = &self.messages[&self.asks[ask].message];
        let redelivered = message.delivered.is_some_and(|(.., redelivered)| redelivered);
        let again = redelivered && (self.is_same(seq, ask) || own_end);
        let drops = match (self.lives[&seq].state, self.asks[ask].new.on_duplicate) {
            (State::Sent, _) if self.is_another_try(seq, ask) => false,
            (State::Sent, DuplicateRule::Keep | DuplicateRule::Earliest) => true,
            (State::Sent, DuplicateRule::Reject) => redelivered,
            _ => again,
        };
        drops && self.remembered(seq, from_wall).0
    }

    /// When the message of an entry was handed over, by the present wall clock.
    fn handed_over_at(&self, ask: usize) -> u64 {
        let delivered = self.messages[&self.asks[ask].message].delivered;
        delivered.map_or(self.now.wall, |(_, mono, ..)| self.now.wall.saturating_sub(self.now.mono - mono))
    }

    /// The end by which an id is known if this one was not remembered because the tail was 0 then: the last remembered
    /// end before it.
    pub(super) fn end_before(&self, identity: Identity, seq: u64) -> Option<u64> {
        let forgotten = |seq: &u64| self.lives[seq].tail == Some(0);
        let ends =
            self.timeline.get(&identity).into_iter().flatten().rev().filter_map(|(_, known)| match known {
                Known::Ended(seq) => Some(*seq),
                Known::Nobody | Known::Waiting(_) | Known::Out(_) => None,
            });
        let mut before = ends.skip_while(|end| *end != seq).skip_while(forgotten);
        before.next().filter(|_| forgotten(&seq))
    }

    fn stays(&self, seq: u64, ask: usize) -> bool {
        let (life, new) = (&self.lives[&seq], &self.asks[ask].new);
        let Some(at) = new.at else { return true };
        let before = life.window.is_some()
            || !self.before.is_empty()
            || self.stepped
            || self.is_retimed_since(seq, ask)
            || self.keeps_its_time(seq, ask);
        // It was decided at some moment since it was delivered.
        let delivered = self.messages[&self.asks[ask].message].delivered.map_or(0, |(_, mono, ..)| mono);
        let since = self.now.wall.saturating_sub(self.now.mono - delivered);
        let due = |wall| own_due(self.settings.of(&new.application), at, new.expiry, wall);
        let mut dues = [since, self.now.wall].map(due).into_iter();
        match new.on_duplicate {
            DuplicateRule::Earliest => before || at >= life.due || dues.any(|due| due >= life.due),
            _ => before || at <= life.due || dues.any(|due| due <= life.due),
        }
    }

    pub(super) fn pending_commands(&self) -> Vec<(&Command, Option<u64>, usize)> {
        self.commands.values().map(|asked| (&asked.command, asked.tag, asked.call)).collect()
    }

    /// Without a store: whether another request has the same id and has not been published yet.
    pub(super) fn met_unseen(&self, ask: usize, identity: Identity) -> bool {
        self.asks.iter().enumerate().any(|(other, a)| other != ask && a.new.identity == Some(identity))
    }

    pub(super) fn may_be_cancelled(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        self.commands.values().chain(self.answered.values()).any(|asked| match &asked.command {
            Command::Cancel(target) => new.identity == Some(target.identity) || new.identity.is_none(),
            Command::CancelAll(of) => {
                new.application == of.application && new.customer.as_deref() == Some(&*of.customer)
            }
            Command::CancelSelected(selection) => {
                new.application == selection.application && selection.takes_customer(new.customer.as_deref())
            }
            Command::DropParked(application) => new.application == *application,
            _ => false,
        })
    }

    pub(super) fn check_verdict(&self, ask: usize, seq: Option<u64>, reason: Reason) {
        let asked = &self.asks[ask];
        let settings = self.settings.of(&asked.new.application);
        let life = seq.map(|seq| &self.lives[&seq]);
        let live = self.live(&asked.new.application);
        let right = match reason {
            Reason::Invalid => asked.rejected && seq.is_none(),
            // It may have died before the clock was set back.
            Reason::Expired => {
                asked.new.expiry.is_some_and(|at| self.now.wall >= at || self.stepped_back > 0)
            }
            Reason::Attempts => {
                let least =
                    std::iter::once(settings).chain(self.before.iter().map(|b| b.of(&asked.new.application)));
                let least = least.map(|s| s.retry.attempts).filter(|n| *n > 0).min();
                life.is_some_and(|life| least.is_some_and(|least| life.attempts.1 >= least))
            }
            Reason::Refused => asked.poison,
            Reason::Full => !self.durable || self.may_be_full(ask, life.is_some(), live),
            Reason::Duplicate => self.may_be_rejected(ask),
            Reason::Unsupported => {
                let hold = self.settings.hold_max.unwrap_or(u64::MAX);
                asked.new.at.is_some_and(|at| !self.durable && at.saturating_add(settings.coalesce) > hold)
            }
            Reason::TooLarge => false,
        };
        let new = &asked.new;
        assert!(right, "{ask} is dead without reason: {reason:?}, {live} live, {settings:?}; {new:?}");
    }

    fn may_be_rejected(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        let Some(identity) = new.identity else { return false };
        let (known, ..) = self.seen_by(ask, identity);
        let met = |known: &Known| match *known {
            Known::Nobody => false,
            Known::Waiting(_) => true,
            Known::Out(seq) => !self.is_another_try(seq, ask),
            Known::Ended(seq) => {
                let sent = |seq, from| {
                    let duplicate = self.lives[&seq].state == State::Sent && !self.is_another_try(seq, ask);
                    duplicate && self.remembered(seq, from).0
                };
                let before = self.end_before(identity, seq);
                sent(seq, self.lives[&seq].ended_at)
                    || before.is_some_and(|seq| sent(seq, self.handed_over_at(ask)))
            }
        };
        let seen = known.iter().any(met) || self.met_unseen(ask, identity);
        new.on_duplicate == DuplicateRule::Reject && (seen || !self.durable)
    }

    /// Whether it needs a window and as many may be open as are allowed.
    fn may_be_full_of_windows(&self, new: &NewItem, whole: &Settings) -> bool {
        new.at.is_none()
            && new.customer.is_some()
            && (whole.customers < 10
                || self.lives_begun > 1
                || self.windows_at_most() as u64 >= whole.customers)
    }

    /// Whether it may be refused for lack of a window, where that is the policy.
    fn may_lack_window(&self, ask: usize) -> bool {
        let new = &self.asks[ask].new;
        std::iter::once(&self.settings).chain(&self.before).any(|whole| {
            let refuses = whole.of(&new.application).on_full == OnFull::DropNewest;
            refuses && self.may_be_full_of_windows(new, whole)
        })
    }

    /// Number of items that are confirmed and not deleted: they count until the engine handles the outcome.
    fn unheard_of(&self, application: &str) -> u64 {
        let is_unheard = |life: &&Life| {
            life.state == State::Sent && !life.deleted && *self.asks[life.ask].new.application == *application
        };
        self.lives.values().filter(is_unheard).count() as u64
    }

    fn may_be_full(&self, ask: usize, was_accepted: bool, live: u64) -> bool {
        let new = &self.asks[ask].new;
        let all = std::iter::once(&self.settings).chain(&self.before);
        all.into_iter().any(|whole| {
            let settings = whole.of(&new.application);
            let limit = settings.max_waiting;
            let given_back = self.given_back.get(&*new.application).copied().unwrap_or(0);
            let unseen = self.unseen_of(&new.application).saturating_sub(1) + given_back;
            let leaving = self.leaving.get(&*new.application).copied().unwrap_or(0);
            let live = live + leaving;
            let most = live + self.unheard_of(&new.application);
            let at_limit = limit > 0 && if was_accepted { most > limit } else { most + unseen >= limit };
            let windows = self.may_be_full_of_windows(new, whole);
            // Including applications with requests that may have been accepted and are not visible yet.
            let has_any = |(name, app): &(&String, &App)| {
                app.live > 0 || self.unseen_of(name) > 0 || self.leaving.get(*name).is_some_and(|n| *n > 0)
            };
            let names = self.apps.iter().filter(has_any).count() as u64;
            let passed = self.passed.get(&*new.application).copied().unwrap_or(0);
            let many = live <= passed && names >= whole.max_applications;
            match settings.on_full {
                OnFull::DropNewest | OnFull::DropOldest if !self.durable => true,
                // It was given up before it was ever written, because it is due before all others.
                OnFull::DropOldest if !was_accepted => {
                    let soon = new.at.is_none_or(|at| at <= self.latest_wall);
                    // No other item can be given up while all are in flight.
                    let beyond = limit > 0 && most + unseen >= limit + whole.thresholds.trim_slack;
                    (at_limit && soon) || beyond || many
                }
                OnFull::DropOldest => {
                    limit > 0 && live + self.unseen_of(&new.application) + given_back > limit
                }
                OnFull::DropNewest => !was_accepted && (at_limit || windows || many),
                OnFull::Pause | OnFull::FlushEarly => !was_accepted && many,
            }
        })
    }
}

/// The due of an own time, by the contract.
pub(super) fn own_due(settings: &AppSettings, at: u64, expiry: Option<u64>, wall: u64) -> u64 {
    if at <= wall {
        return wall;
    }
    let rounded =
        if settings.coalesce == 0 { at } else { at.div_ceil(settings.coalesce) * settings.coalesce };
    if expiry.is_some_and(|expiry| rounded >= expiry) {
        at
    } else {
        rounded
    }
}
