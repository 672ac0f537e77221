//! The database: rows that transactions change one after the other, a row with the claim and its lease, and its past, to
//! which an asynchronous replica goes back.

use super::judge::Judge;
use super::{Bug, LEASE_MS};
use std::collections::{BTreeSet, VecDeque};
use tidegate_fake_store::FakeStore;
use tidegate_store::{CommitError, StoreFailure, Takeover};
use tidegate_types::event::*;

/// Commits that a replica may lack.
const PAST: usize = 8;

/// A transaction that keeps the row locked for longer is ended by the server (`idle_in_transaction_session_timeout`).
pub(super) const IDLE_MS: u64 = LEASE_MS / 2;

/// The work of one call of the store's thread.
#[derive(Debug)]
pub(super) enum Work {
    Claim,
    /// The reads after a claim, and the renewal behind them; with the wall clock of the daemon.
    Open(u64),
    Renew,
    Load(Load),
    Commit(Vec<(Vec<Op>, Marks)>, Token),
    Release,
}

/// A call on its way to the database.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) node: usize,
    pub(super) name: u64,
    /// The claim, which is also the number of the life.
    pub(super) life: u64,
    pub(super) epoch: u64,
    /// When it was sent, monotonic ms of its node.
    pub(super) sent: u64,
    /// For how long it has waited for the row, ms.
    pub(super) waited: u64,
    pub(super) work: Work,
}

/// The answer to a call.
#[derive(Debug)]
pub(super) enum Answered {
    Claimed { epoch: u64, takeover: Takeover },
    NotFree { left_ms: u64 },
    Opened(Box<Opened>),
    Renewed,
    Loaded(Loaded),
    Committed(Token),
    Released,
}

pub(super) type Answer = Result<Answered, StoreFailure>;

/// The text does not matter: the daemon opens the store again.
pub(super) fn lost() -> StoreFailure {
    CommitError::Lost("no answer".to_owned()).into()
}

/// The row of table `shards`.
#[derive(Clone, Default)]
pub(super) struct Row {
    pub(super) claim: Option<u64>,
    pub(super) epoch: u64,
    pub(super) owner: Option<u64>,
    pub(super) expires: u64,
}

/// The state before a transaction, and the requests that the transaction concerned.
struct Past {
    store: FakeStore,
    row: Row,
    touched: BTreeSet<usize>,
}

/// A transaction between its fence and its COMMIT.
pub(super) struct OpenTransaction {
    pub(super) call: Call,
    fenced_at: u64,
    pub(super) number: u64,
}

pub(super) struct Database {
    pub(super) store: FakeStore,
    pub(super) row: Row,
    pub(super) open: Option<OpenTransaction>,
    past: VecDeque<Past>,
    /// Number of transactions begun.
    begun: u64,
    /// Whether a replica may take over.
    keeps_past: bool,
    bug: Option<Bug>,
}

impl Database {
    pub(super) fn new(keeps_past: bool, bug: Option<Bug>) -> Self {
        Database {
            store: FakeStore::default(),
            row: Row::default(),
            open: None,
            past: VecDeque::new(),
            begun: 0,
            keeps_past,
            bug,
        }
    }

    fn keep_past(&mut self, touched: BTreeSet<usize>) {
        if self.keeps_past {
            self.past.push_back(Past { store: self.store.clone(), row: self.row.clone(), touched });
            if self.past.len() > PAST {
                self.past.pop_front();
            }
        }
    }

    /// Whether statement `claim` finds the row: the lease has expired, or it was this daemon's.
    pub(super) fn is_claimable(&self, name: u64, now: u64) -> bool {
        self.row.expires < now || self.row.owner == Some(name)
    }

    /// Whether another transaction has locked the row that this call needs.
    pub(super) fn is_locked_for(&self, work: &Work) -> bool {
        let needs = match work {
            Work::Load(_) => false,
            Work::Claim => self.bug != Some(Bug::ClaimIgnoresTransaction),
            Work::Open(_) | Work::Renew | Work::Commit(..) | Work::Release => true,
        };
        needs && self.open.is_some()
    }

    /// Carries out the statement `claim`, whose row is free.
    pub(super) fn claim(&mut self, call: &Call, now: u64) -> Answered {
        self.keep_past(BTreeSet::new());
        let takeover = Takeover::of(self.row.owner.as_ref(), &call.name);
        let epoch = self.row.epoch + 1;
        self.row = Row { claim: Some(call.life), epoch, owner: Some(call.name), expires: now + LEASE_MS };
        Answered::Claimed { epoch, takeover }
    }

    /// The first statement of each transaction.
    pub(super) fn fence(&self, call: &Call) -> Result<(), StoreFailure> {
        let holds = match self.bug {
            Some(Bug::NoFence) => true,
            Some(Bug::FenceByEpoch) => self.row.epoch == call.epoch,
            _ => self.row.claim == Some(call.life),
        };
        holds.then_some(()).ok_or_else(|| CommitError::Fenced.into())
    }

    /// Begins a transaction that has passed the fence, and whose COMMIT comes later. Returns its number.
    pub(super) fn begin(&mut self, call: Call, now: u64) -> u64 {
        self.begun += 1;
        self.open = Some(OpenTransaction { call, fenced_at: now, number: self.begun });
        self.begun
    }

    /// Carries out the COMMIT of a transaction that passed the fence.
    pub(super) fn finish(&mut self, open: OpenTransaction, judge: &mut Judge) -> Answered {
        let OpenTransaction { call: Call { life, work, .. }, fenced_at, .. } = open;
        judge.check_commit(life, self.row.claim);
        let expires = fenced_at + LEASE_MS;
        match work {
            Work::Commit(groups, token) => {
                let touched = groups.iter().flat_map(|(ops, _)| judge.touched(&self.store, ops)).collect();
                self.keep_past(touched);
                for (ops, marks) in groups {
                    judge.commits(&mut self.store, ops, marks);
                }
                self.row.expires = expires;
                Answered::Committed(token)
            }
            Work::Open(wall) => {
                self.keep_past(BTreeSet::new());
                self.row.expires = expires;
                Answered::Opened(Box::new(self.store.opened(wall)))
            }
            Work::Renew => {
                self.keep_past(BTreeSet::new());
                self.row.expires = expires;
                Answered::Renewed
            }
            Work::Claim | Work::Load(_) | Work::Release => unreachable!("not fenced"),
        }
    }

    /// A claim that is still the present one is given up.
    pub(super) fn release(&mut self, life: u64) {
        if self.row.claim == Some(life) {
            self.keep_past(BTreeSet::new());
            self.row = Row { epoch: self.row.epoch, ..Row::default() };
        }
    }

    /// How many of the last transactions to lose so that the present claim is one of them; all, if it is older.
    pub(super) fn since_claim(&self) -> usize {
        let its = self.past.iter().rev().take_while(|past| past.row.claim == self.row.claim).count();
        (its + 1).min(self.past.len())
    }

    /// A replica that lacks the last `most` transactions takes over. Returns their number, and the requests that they
    /// concerned.
    pub(super) fn fail_over(&mut self, most: usize) -> (usize, BTreeSet<usize>) {
        let mut touched = BTreeSet::new();
        let mut lost = 0;
        while lost < most {
            let Some(past) = self.past.pop_back() else { break };
            (self.store, self.row) = (past.store, past.row);
            touched.extend(past.touched);
            lost += 1;
        }
        (lost, touched)
    }
}
