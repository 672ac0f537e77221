//! The database's clock beside this machine's.
//!
//! The database counts the lease, and each daemon delivers by the wall clock of its machine. If all machines'
//! clocks agree with the database's, then a takeover delivers nothing early or late.

use super::connect::{DatabaseError, DatabaseLink};
use tidegate_common::clock;

/// Largest difference with which a daemon claims the store.
const MAX_CLOCK_DIFFERENCE_MS: u64 = 30_000;

/// The database's clock minus this machine's, ms. The answer takes a while, and a difference within that time
/// counts as 0: the true one is never smaller than this.
///
/// # Errors
///
/// Those of the query.
pub(super) fn difference_ms(link: &DatabaseLink) -> Result<i64, DatabaseError> {
    let before = clock::wall_ms();
    let rows = link.words("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8")?;
    let after = clock::wall_ms();
    let at = rows.first().and_then(|row| row.concat().parse().ok());
    let at = at.ok_or_else(|| DatabaseError::saying("the server does not say what time it is"))?;
    Ok(beyond(at, before as i64, after as i64))
}

/// How far a moment is before (negative) or after a stretch of time.
fn beyond(at: i64, from: i64, to: i64) -> i64 {
    if at < from {
        at - from
    } else {
        (at - to).max(0)
    }
}

/// A sentence about a difference.
pub(super) fn sentence(difference_ms: i64) -> String {
    let way = if difference_ms < 0 { "behind" } else { "ahead of" };
    let ms = difference_ms.unsigned_abs();
    format!("the database's clock is {}.{:03} s {way} this machine's", ms / 1_000, ms % 1_000)
}

/// Why a daemon with this difference does not claim the store.
pub(super) fn refusal(difference_ms: i64) -> Option<String> {
    let most = MAX_CLOCK_DIFFERENCE_MS / 1_000;
    let sentence = sentence(difference_ms);
    let text = format!(
        "{sentence}: with more than {most} s the daemon does not claim the store. Synchronise both clocks"
    );
    (difference_ms.unsigned_abs() > MAX_CLOCK_DIFFERENCE_MS).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_within_the_question_differs_by_nothing() {
        assert_eq!([7, 10, 15, 20, 26].map(|at| beyond(at, 10, 20)), [-3, 0, 0, 0, 6]);
        assert_eq!(sentence(1_050), "the database's clock is 1.050 s ahead of this machine's");
        assert_eq!(sentence(-31_000), "the database's clock is 31.000 s behind this machine's");
        assert!([-30_000, 0, 30_000].into_iter().all(|ms| refusal(ms).is_none()));
        assert!([-30_001, 30_001].into_iter().all(|ms| refusal(ms).is_some()));
    }
}
