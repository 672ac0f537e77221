//! Answers to look-ups and lists.

use super::commands::Asked;
use super::model::{Known, Model};
use std::collections::BTreeSet;
use tidegate_types::*;

impl Model {
    pub(super) fn judge_lookup(&mut self, asked: &Asked, target: &Target, answer: &Answer) {
        let known = self.known_since(target.identity, asked.call);
        let elsewhere = |k: &Known| matches!(k, Known::Waiting(s) | Known::Out(s) | Known::Ended(s) if self.application(*s) != &*target.application);
        let known: Vec<Known> = known.into_iter().filter(|k| !elsewhere(k)).collect();
        match answer {
            Answer::Found(listed) => {
                let is_it =
                    |k: &Known| matches!(k, Known::Waiting(s) | Known::Out(s) if *s == listed.key.seq);
                // An item that is due at once may be reported before it is published or written.
                let at_once = listed.due <= self.now.wall && !self.lives.contains_key(&listed.key.seq);
                // Or its connection was lost before that.
                let in_line = self.met_pending(usize::MAX, target.identity) || self.ingest_lost >= asked.call;
                // An item whose request comes again keeps its number until then.
                let orphaned = self.lives.get(&listed.key.seq).is_some_and(|life| life.orphaned);
                let unseen = self.may_wait_unseen(target.identity) || at_once && in_line || orphaned;
                assert!(known.iter().any(is_it) || unseen, "{listed:?}: {known:?}");
                if !unseen {
                    self.judge_listed(asked, listed);
                }
            }
            Answer::Ended(ended) => {
                if self.ended_unwritten(target, &known, ended)
                    || self.ended_before(asked, target, &known, ended)
                {
                    return;
                }
                let right =
                    known.iter().any(|k| matches!(k, Known::Ended(seq) if self.ended_so(*seq, ended)));
                assert!(right || !self.durable, "{ended:?}: {known:?}");
                // It must have ended since the question, or within the tail.
                let told = |seq: u64| {
                    self.lives[&seq].ended_call >= asked.call || self.remembered(seq, asked.now.wall).0
                };
                let within = known.iter().any(|k| matches!(k, Known::Ended(seq) if told(*seq)));
                assert!(within || !self.durable, "told beyond the tail: {ended:?}");
            }
            Answer::Unknown => assert!(self.may_be_unknown(asked, &known), "unknown {target:?}: {known:?}"),
            _ => panic!("no answer to a look-up: {answer:?}"),
        }
    }

    fn judge_listed(&self, asked: &Asked, listed: &Listed) {
        let seq = listed.key.seq;
        let Some(life) = self.lives.get(&seq) else {
            // The item may be confirmed before it is written.
            let due = listed.due <= self.now.wall || self.stepped_back > 0;
            return assert!(due, "nothing has number {seq}: {listed:?}");
        };
        let new = &self.asks[life.ask].new;
        assert_eq!(
            (&*listed.application, listed.customer.as_deref()),
            (&*new.application, new.customer.as_deref())
        );
        assert_eq!(listed.accepted_due, life.accepted_due);
        assert!(listed.attempts <= life.attempts.1, "{listed:?}: {:?}", life.attempts);
        let since = life.retimed_call >= asked.call;
        match self.own_time(life) {
            Some(_) => assert!(listed.due == life.due || since, "{listed:?}: {}", life.due),
            None => assert!(listed.due <= life.accepted_due || life.window.is_none() || since, "{listed:?}"),
        }
        let known = self.known_since(life.identity, asked.call);
        let right = known.iter().any(|k| match (k, listed.stage) {
            (Known::Waiting(s), ListedStage::Waiting) | (Known::Out(s), ListedStage::InFlight) => *s == seq,
            (Known::Waiting(s), ListedStage::Parked) => {
                let app = &self.apps[&*new.application];
                // Items that are not due yet wait, whatever happens to the others.
                let due = listed.due <= self.latest_wall;
                *s == seq && due && (app.failing || app.failed_call >= asked.call)
            }
            // In a batch that waits for payloads, or is to be sent again.
            (Known::Waiting(s), ListedStage::InFlight) => {
                let due = listed.due <= self.latest_wall;
                *s == seq && (life.published.is_some() || due)
            }
            // A call handles few ended attempts, and this one is still queued.
            (Known::Ended(s), ListedStage::InFlight) => *s == seq && self.may_be_unlooked_at(life.ended_call),
            _ => false,
        });
        let moved = life.waiting_since >= asked.call;
        assert!(right || moved, "{listed:?}: {known:?}");
    }

    pub(super) fn judge_list(&mut self, asked: &Asked, filter: &Filter, answer: &Answer) {
        let Answer::Listed { items, next } = answer else { panic!("{answer:?}") };
        assert!(items.len() <= filter.limit);
        assert!(items.windows(2).all(|pair| pair[0].key < pair[1].key), "in order");
        let numbers: BTreeSet<u64> = items.iter().map(|listed| listed.key.seq).collect();
        assert_eq!(numbers.len(), items.len(), "each once");
        assert!(
            next.is_none_or(|next| items.last().is_none_or(|last| last.key < next)),
            "the next page begins behind"
        );
        let takes = |wanted: &Option<std::sync::Arc<str>>, is: Option<&str>| {
            wanted.as_deref().is_none_or(|w| Some(w) == is)
        };
        for listed in items {
            assert!(
                takes(&filter.application, Some(&listed.application))
                    && takes(&filter.customer, listed.customer.as_deref())
            );
            assert!(
                listed.key >= filter.from && filter.until.is_none_or(|until| listed.key.due < until),
                "{listed:?}"
            );
            assert!(filter.state.is_none_or(|state| state == listed.stage), "{listed:?}");
            if self.durable {
                self.judge_listed(asked, listed);
            }
        }
        if !self.durable || filter.state.is_some() {
            return;
        }
        let end = Key::at(filter.until.unwrap_or(u64::MAX));
        let end = next.map_or(end, |next| next.min(end));
        for life in self
            .lives
            .values()
            .filter(|life| life.state.is_live() && life.accepted < asked.call && life.durable)
        {
            let new = &self.asks[life.ask].new;
            let retimed = life.retimed.filter(|_| life.retimed_call < asked.call);
            let planned = retimed.unwrap_or(life.accepted_due);
            let key = Key { due: planned, window: life.number, seq: life.seq };
            let meant = takes(&filter.application, Some(&new.application))
                && takes(&filter.customer, new.customer.as_deref());
            // An item that was moved to the moment at which its window closed has another place. So has a failed item
            // that was taken for a member of a window after the clock was set back.
            let moved = self.stepped && life.published.is_some();
            if !meant
                || moved
                || life.due != planned
                || key < filter.from
                || key >= end
                || life.restored
                || life.superseded
            {
                continue;
            }
            let there = items.iter().any(|listed| listed.key.seq == life.seq);
            assert!(there, "{key:?} is not on the page: {filter:?}");
        }
    }
}
