//! The database's clock beside this machine's.
//!
//! The database counts the lease, and each daemon delivers by the wall clock of its machine. If all machines'
//! clocks agree with the database's, then a takeover delivers nothing early or late.

use super::connect::{DatabaseError, DatabaseLink};
use tidegate_common::clock;
use tidegate_types::Now;

/// Largest difference with which a daemon claims the store.
const MAX_CLOCK_DIFFERENCE_MS: u64 = 30_000;

/// An answer within this time (ms) shows the difference well enough.
const PROMPT_MS: u64 = 1_000;
/// Largest number of questions until one is answered promptly.
const QUESTIONS: u32 = 3;

/// The database's clock minus this machine's, ms. A difference within the time of the answer counts as 0: the
/// true one is never smaller than this. So the question is asked again if the answer was slow, or if this
/// machine's clock stepped meanwhile.
///
/// # Errors
///
/// Those of the query.
pub(super) fn difference_ms(link: &DatabaseLink) -> Result<i64, DatabaseError> {
    let (mut difference, mut is_prompt) = ask(link)?;
    for _ in 1..QUESTIONS {
        if is_prompt {
            break;
        }
        (difference, is_prompt) = ask(link)?;
    }
    Ok(difference)
}

/// The difference by one question, and whether the answer was prompt.
fn ask(link: &DatabaseLink) -> Result<(i64, bool), DatabaseError> {
    let before = clock::now();
    let rows = link.words("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8")?;
    let after = clock::now();
    let at = rows.first().and_then(|row| row.concat().parse().ok());
    let at = at.ok_or_else(|| DatabaseError::saying("the server does not say what time it is"))?;
    Ok((beyond(at, before.wall as i64, after.wall as i64), is_prompt(before, after)))
}

/// Why a node does not claim stores that has asked at `before` what time the database has, and was told `at`
/// (UTC ms). A slow answer shows nothing.
pub(super) fn refusal_at(at: i64, before: Now) -> Option<String> {
    let after = clock::now();
    let refused = refusal(beyond(at, before.wall as i64, after.wall as i64));
    refused.filter(|_| is_prompt(before, after))
}

/// Whether little time passed by both clocks.
fn is_prompt(before: Now, after: Now) -> bool {
    after.mono.saturating_sub(before.mono) <= PROMPT_MS && before.wall.abs_diff(after.wall) <= PROMPT_MS
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
    fn a_slow_answer_and_a_step_of_the_clock_are_no_prompt_answer() {
        let before = Now { wall: 50_000, mono: 7_000 };
        for (wall, mono, prompt) in [
            (50_003, 7_003, true),
            (51_000, 8_000, true),
            (51_001, 8_001, false),
            // Suspended, or set by hand.
            (90_000, 7_003, false),
            (10_000, 7_003, false),
        ] {
            assert_eq!(is_prompt(before, Now { wall, mono }), prompt, "{wall} {mono}");
        }
    }

    #[test]
    fn a_clock_is_refused_by_a_prompt_answer_alone() {
        let now = clock::now();
        let at = |ahead_ms: i64| now.wall as i64 + ahead_ms;
        assert_eq!(refusal_at(at(0), now), None);
        let told = refusal_at(at(-40_000), now).unwrap_or_default();
        assert!(told.contains("40.000 s behind this machine's: with more than 30 s"), "{told}");
        let before = Now { mono: now.mono.saturating_sub(2_000), ..now };
        assert_eq!(refusal_at(at(-40_000), before), None);
    }

    #[test]
    fn a_moment_within_the_question_differs_by_nothing() {
        assert_eq!([7, 10, 15, 20, 26].map(|at| beyond(at, 10, 20)), [-3, 0, 0, 0, 6]);
        assert_eq!(sentence(1_050), "the database's clock is 1.050 s ahead of this machine's");
        assert_eq!(sentence(-31_000), "the database's clock is 31.000 s behind this machine's");
        assert!([-30_000, 0, 30_000].into_iter().all(|ms| refusal(ms).is_none()));
        assert!([-30_001, 30_001].into_iter().all(|ms| refusal(ms).is_some()));
    }
}
