//! How often a recurring event is logged. Pure: the caller reads the clock and writes the line, because
//! targets, levels and fields differ.

use std::time::{Duration, Instant};

/// Length of a span, in which lines are counted.
const SPAN: Duration = Duration::from_secs(60);

/// Bounds the lines about one subject to `MOST` a minute, and counts the events left out.
#[derive(Debug, Default)]
pub struct LogLimit<const MOST: u32> {
    /// Start of the present span: the moment of its first line.
    since: Option<Instant>,
    /// Lines in it.
    lines: u32,
    /// Text of the last line.
    text: String,
    /// Events left out since the last line.
    left_out: u64,
}

impl<const MOST: u32> LogLimit<MOST> {
    /// Asks for a line about this many events. Returns the number of events left out before it; `None`: these
    /// are left out as well.
    pub fn admit(&mut self, events: u64, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= MOST {
            self.left_out += events;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// The same for one event with a text. It is left out also if the last line of the span had this text.
    pub fn admit_text(&mut self, text: &str, now: Instant) -> Option<u64> {
        if !self.is_over(now) && is_same(&self.text, text) {
            self.left_out += 1;
            return None;
        }
        let left_out = self.admit(1, now)?;
        text.clone_into(&mut self.text);
        Some(left_out)
    }

    /// The present span has ended, or none has begun.
    fn is_over(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.duration_since(since) >= SPAN)
    }
}

/// Whether two texts are the same. Digits are ignored, since an error text may contain a timestamp.
fn is_same(a: &str, b: &str) -> bool {
    let counts = |byte: &u8| !byte.is_ascii_digit();
    a.bytes().filter(counts).eq(b.bytes().filter(counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_logged_once_a_minute_and_changing_ones_a_few_times() {
        let begin = Instant::now();
        let mut limit = LogLimit::<6>::default();
        let mut admit = |text: &str, second: u64| limit.admit_text(text, begin + Duration::from_secs(second));
        assert_eq!([admit("a", 0), admit("a", 1), admit("b", 2)], [Some(0), None, Some(1)]);
        assert_eq!(admit("b 1 s", 3), Some(0));
        assert_eq!(admit("b 2 s", 4), None, "but for a number");
        for n in 5..60 {
            let text = "x".repeat(n as usize);
            assert_eq!(admit(&text, n).is_some(), n < 8, "second {n}");
        }
        assert_eq!([admit("x", 60), admit("x", 61)], [Some(52), None], "another minute");
    }

    #[test]
    fn events_without_a_text_are_admitted_up_to_the_limit() {
        let begin = Instant::now();
        let mut limit = LogLimit::<2>::default();
        let mut admit = |events: u64, second: u64| limit.admit(events, begin + Duration::from_secs(second));
        assert_eq!([admit(3, 0), admit(1, 0), admit(5, 1), admit(7, 59)], [Some(0), Some(0), None, None]);
        assert_eq!([admit(1, 60), admit(1, 60), admit(1, 60)], [Some(12), Some(0), None], "another minute");
        assert_eq!(admit(1, 200), Some(1), "a minute begins with its first line");
        assert_eq!([admit(1, 259), admit(1, 259), admit(1, 260)], [Some(0), None, Some(1)]);
    }
}
