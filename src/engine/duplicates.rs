//! The fate of a request whose id is known: the contract's table, as a pure function.

use tidegate_types::{BatchId, DuplicateRule, End, Ended};

/// The known facts about the id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'a> {
    /// An item of this id waits or is parked: its due, and the due of the new one if accepted (UTC ms).
    Waiting { due: u64, new_due: u64 },
    /// An item of this id is in flight, or the broker will redeliver its only copy.
    Undecided {
        /// Its request will be redelivered. The new request may be it, so the end of the attempt decides
        /// under every rule.
        orphaned: bool,
    },
    /// It ended within the tail.
    Ended(&'a Ended),
}

/// The decision, in the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The new one is dropped.
    Drop,
    /// The new one replaces the old one.
    Replace,
    /// The new one is accepted as another item with that id.
    Anew,
    /// The new one is dead, reason `duplicate`.
    Reject,
    /// The attempt has to end first.
    Await,
}

/// The fingerprints of two requests with the same id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fingerprints {
    /// Of the new request.
    pub(crate) new: u64,
    /// Of the known item, if it waits.
    pub(crate) old: u64,
}

/// `redelivered`: the broker's flag, which says only that the message was delivered before. `tried`: the
/// batch in which, by the new request, its consumer received the item.
pub(crate) fn judge(
    rule: DuplicateRule,
    known: Known<'_>,
    redelivered: bool,
    Fingerprints { new: fingerprint, old }: Fingerprints,
    tried: Option<BatchId>,
) -> Verdict {
    use DuplicateRule::{Earliest, Keep, Latest, Reject, Replace};
    let comes_back = |before: u64| redelivered && before == fingerprint;
    // A redelivery of the same try has an equal fingerprint; another try of the item has not, since its
    // headers count tries.
    let is_next_try = |batch: BatchId, before: u64| tried == Some(batch) && before != fingerprint;
    match known {
        Known::Undecided { orphaned: true } => Verdict::Await,
        // Its consumer may have received it before the confirm came; the confirm names the batch.
        Known::Undecided { orphaned: false } if tried.is_some() && !comes_back(old) => Verdict::Await,
        Known::Undecided { orphaned: false } => match rule {
            Keep => Verdict::Drop,
            Reject if comes_back(old) => Verdict::Drop,
            Reject => Verdict::Reject,
            Replace | Earliest | Latest => Verdict::Await,
        },
        Known::Waiting { due, new_due } => match rule {
            Keep => Verdict::Drop,
            Reject if comes_back(old) => Verdict::Drop,
            Reject => Verdict::Reject,
            Replace => Verdict::Replace,
            Earliest if new_due < due => Verdict::Replace,
            Latest if new_due > due => Verdict::Replace,
            Earliest | Latest => Verdict::Drop,
        },
        Known::Ended(ended) => match (&ended.end, rule) {
            (End::CancelledAgain, _) => Verdict::Anew,
            (End::Cancelled | End::Dead(_), _) if comes_back(ended.fingerprint) => Verdict::Drop,
            (End::Cancelled | End::Dead(_), _) => Verdict::Anew,
            (End::Sent(batch), _) if is_next_try(*batch, ended.fingerprint) => Verdict::Anew,
            (End::Sent(_), Keep | Earliest) => Verdict::Drop,
            (End::Sent(_), _) if comes_back(ended.fingerprint) => Verdict::Drop,
            (End::Sent(_), Reject) => Verdict::Reject,
            (End::Sent(_), Replace | Latest) => Verdict::Anew,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use tidegate_types::{BatchId, Dead, Reason};

    fn ended(end: End) -> Ended {
        Ended { end, at: 0, due: 0, attempts: 0, fingerprint: 7, customer: None }
    }

    /// Columns: waiting (new one earlier, same, later), in flight, orphaned, sent (the same again, the same
    /// bytes sent anew, another one redelivered), cancelled (the same again, another), cancelled by a
    /// repeated command, dead (the same again). The second string is for a request that names the batch in
    /// which the other was sent, and is another try if its bytes differ; the third is for one that names
    /// another batch.
    /// Excluded: a rule that acts as another; any redelivered request taken for one that comes back, or none;
    /// a try judged by another batch, by none, again, or before the outcome of the first; a request dropped
    /// for an item that only the broker has.
    /// Judges promise 14.
    #[test]
    fn the_contracts_table() {
        let batch = BatchId([1; 16]);
        let sent = ended(End::Sent(batch));
        let cancelled = ended(End::Cancelled);
        let again = ended(End::CancelledAgain);
        let dead = ended(End::Dead(Arc::new(Dead { reason: Reason::Attempts, error: "".into() })));
        let cases: [(Known<'_>, bool, u64); 12] = [
            (Known::Waiting { due: 5, new_due: 4 }, false, 7),
            (Known::Waiting { due: 5, new_due: 5 }, false, 7),
            (Known::Waiting { due: 5, new_due: 6 }, false, 7),
            (Known::Undecided { orphaned: false }, false, 7),
            (Known::Undecided { orphaned: true }, true, 7),
            (Known::Ended(&sent), true, 7),
            (Known::Ended(&sent), false, 7),
            (Known::Ended(&sent), true, 8),
            (Known::Ended(&cancelled), true, 7),
            (Known::Ended(&cancelled), true, 8),
            (Known::Ended(&again), true, 7),
            (Known::Ended(&dead), true, 7),
        ];
        let line = |rule, tried| -> String {
            let letter = |(known, redelivered, fingerprint): &(Known<'_>, bool, u64)| match judge(
                rule,
                *known,
                *redelivered,
                Fingerprints { new: *fingerprint, old: 7 },
                tried,
            ) {
                Verdict::Drop => 'd',
                Verdict::Replace => 'R',
                Verdict::Anew => 'n',
                Verdict::Reject => 'x',
                Verdict::Await => 'w',
            };
            cases.iter().map(letter).collect()
        };
        for (rule, plain, try_again, other_batch) in [
            (DuplicateRule::Keep, "ddddwddddnnd", "dddwwddndnnd", "dddwwddddnnd"),
            (DuplicateRule::Replace, "RRRwwdnndnnd", "RRRwwdnndnnd", "RRRwwdnndnnd"),
            (DuplicateRule::Earliest, "Rddwwddddnnd", "Rddwwddndnnd", "Rddwwddddnnd"),
            (DuplicateRule::Latest, "ddRwwdnndnnd", "ddRwwdnndnnd", "ddRwwdnndnnd"),
            (DuplicateRule::Reject, "xxxxwdxxdnnd", "xxxwwdxndnnd", "xxxwwdxxdnnd"),
        ] {
            assert_eq!(line(rule, None), plain, "{rule:?}");
            assert_eq!(line(rule, Some(batch)), try_again, "{rule:?}");
            assert_eq!(line(rule, Some(BatchId([2; 16]))), other_batch, "{rule:?}");
        }
        let in_flight = Known::Undecided { orphaned: false };
        let same = Fingerprints { new: 7, old: 7 };
        let again = judge(DuplicateRule::Reject, in_flight, true, same, Some(batch));
        assert_eq!(again, Verdict::Drop, "a try that is delivered again is not another one");
    }
}
