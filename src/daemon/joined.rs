//! Joins the answers of all shards to one: a page of a list, or a timeline. Pure.
//!
//! The list of all shards is in the order of keys. Two shards may have the same key: then the one with the
//! lower number comes first, and the place where a page ends contains the shard.
//!
//! Answers are added one by one, in any order, and what cannot be on the page any more is dropped at once. An
//! answer that is no part of a list or timeline is the answer of the whole: a list without one shard would
//! look complete.

use super::answers;
use super::part::{PageRow, ShardPart};
use crate::admin::{CommandRequest, CommandResponse, Status};
use std::collections::BTreeMap;
use tidegate_types::snapshot::Snapshot;
use tidegate_types::{Command, Filter, Key, ListPlace, Thresholds, Timeline, TimelineQuery};

/// What is asked of all shards, and what is known of the answer.
#[derive(Debug)]
pub(super) enum JoinedAnswer {
    Page(JoinedPage),
    Timeline(JoinedTimeline),
}

impl JoinedAnswer {
    /// `None`: the command is about one application, and its home alone answers. `now`, UTC ms, is the moment
    /// from which all shards count: by their own clocks two of them could have different spans.
    pub(super) fn of(request: &CommandRequest, now: u64) -> Option<JoinedAnswer> {
        if let Command::List(filter) = request {
            let page = || JoinedAnswer::Page(JoinedPage::new(filter.clone(), Thresholds::default().page));
            return filter.application.is_none().then(page);
        }
        if let Command::TimelineQuery(query) = request {
            let query = TimelineQuery { at: Some(now), ..query.clone() };
            return query
                .application
                .is_none()
                .then_some(JoinedAnswer::Timeline(JoinedTimeline { query, told: None }));
        }
        None
    }

    /// The command for the shard with this number.
    pub(super) fn part(&self, shard: u16) -> CommandRequest {
        match self {
            JoinedAnswer::Page(page) => Command::List(page.filter.of_shard(shard)),
            JoinedAnswer::Timeline(timeline) => Command::TimelineQuery(timeline.query.clone()),
        }
    }

    /// Adds the answer of this shard.
    ///
    /// # Errors
    /// It is another answer, and that of the whole.
    pub(super) fn add(&mut self, shard: u16, part: ShardPart) -> Result<(), CommandResponse> {
        match (self, part) {
            (JoinedAnswer::Page(page), ShardPart::Page { rows, next }) => page.add(shard, rows, next),
            (JoinedAnswer::Timeline(timeline), ShardPart::Timeline(more)) => timeline.add(*more),
            (_, part) => return Err(part.response()),
        }
        Ok(())
    }

    /// The answer, once each shard's part has been added.
    pub(super) fn response(self) -> CommandResponse {
        let document = match self {
            JoinedAnswer::Page(page) => {
                answers::page(page.items.into_iter().map(|item| item.row.row), page.known_until)
            }
            JoinedAnswer::Timeline(JoinedTimeline { told, query }) => {
                answers::timeline(&told.unwrap_or_else(|| nothing_ahead(&query)))
            }
        };
        CommandResponse { status: Status::Known, document }
    }
}

/// A page of the list of all shards.
#[derive(Debug)]
pub(super) struct JoinedPage {
    filter: Filter,
    /// Approximate bytes after which the page ends.
    most: u64,
    /// The items in the order of their places.
    items: Vec<PageItem>,
    /// The place up to which the page is complete, where the next one begins; `None`: it has no such bound.
    known_until: Option<ListPlace>,
}

#[derive(Debug)]
struct PageItem {
    place: ListPlace,
    row: PageRow,
}

impl JoinedPage {
    fn new(filter: Filter, most: u64) -> Self {
        JoinedPage { filter, most, items: Vec::new(), known_until: None }
    }

    /// Adds the page of one shard, which is complete up to `next`.
    fn add(&mut self, shard: u16, rows: Vec<PageRow>, next: Option<Key>) {
        let place = |key| ListPlace { key, shard };
        self.items.extend(rows.into_iter().map(|row| PageItem { place: place(row.key), row }));
        self.items.sort_unstable_by_key(|row| row.place);
        self.known_until = self.known_until.into_iter().chain(next.map(place)).min();
        let mut bytes = 0;
        let room = self.items.iter().take(self.filter.limit).take_while(|row| {
            let is_full = bytes >= self.most;
            bytes += row.row.size;
            !is_full
        });
        let room = room.count();
        if let Some(left_out) = self.items.get(room).map(|row| row.place) {
            self.known_until = self.known_until.into_iter().chain([left_out]).min();
        }
        if let Some(until) = self.known_until {
            self.items.retain(|row| row.place < until);
        }
    }
}

/// The timeline of all shards.
#[derive(Debug)]
pub(super) struct JoinedTimeline {
    query: TimelineQuery,
    told: Option<Timeline>,
}

impl JoinedTimeline {
    /// Adds the timeline of one shard. All have the same spans.
    fn add(&mut self, more: Timeline) {
        let Some(all) = &mut self.told else {
            self.told = Some(more);
            return;
        };
        let Timeline { at: _, from, each_ms, counts, counted_until, applications, applications_truncated } =
            more;
        debug_assert_eq!((from, each_ms), (all.from, all.each_ms), "the query says from when to count");
        all.counts.iter_mut().zip(counts).for_each(|(all, more)| *all += more);
        all.counted_until = all.counted_until.into_iter().chain(counted_until).min();
        all.applications_truncated |= applications_truncated;
        for (name, ahead) in applications {
            let all = all.applications.entry(name).or_default();
            all.count += ahead.count;
            all.next_due = all.next_due.into_iter().chain(ahead.next_due).min();
        }
        // As many as one shard tells of.
        while all.applications.len() > Snapshot::MAX_APPLICATIONS {
            all.applications.pop_last();
            all.applications_truncated = true;
        }
    }
}

/// The timeline of no shard.
fn nothing_ahead(query: &TimelineQuery) -> Timeline {
    let (at, each_ms) = (query.at.unwrap_or_default(), query.each_ms.max(1));
    Timeline {
        at,
        from: at / each_ms * each_ms,
        each_ms,
        counts: vec![0; query.stretches],
        counted_until: None,
        applications: BTreeMap::new(),
        applications_truncated: false,
    }
}

#[cfg(test)]
#[path = "joined_tests.rs"]
mod tests;
