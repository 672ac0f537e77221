//! Rates: how fast the items of an application may leave, and how many at once.

use core::fmt::{self, Display, Formatter};
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Time units of a rate, with their names, ms.
const SPANS: [(&str, u64); 3] = [("s", 1_000), ("min", 60_000), ("h", 3_600_000)];

/// Maximum items of a rate, and of a burst: more would limit no machine, and sums stay within 64 bits.
pub const MAX_RATE: u32 = 10_000_000;

/// A number of items per time unit: `100/s`, `5/min`, `10/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// 1 to [`MAX_RATE`].
    pub items: u32,
    /// Length of the time unit: 1,000, 60,000 or 3,600,000, ms.
    pub each_ms: u64,
}

impl Rate {
    /// `None`: the number or the time unit is not allowed.
    pub fn new(items: u32, each_ms: u64) -> Option<Self> {
        let known = SPANS.into_iter().any(|(_, ms)| ms == each_ms);
        (known && (1..=MAX_RATE).contains(&items)).then_some(Rate { items, each_ms })
    }

    /// The default burst: the items of one second, at least one.
    pub fn of_a_second(self) -> u32 {
        let items = u64::from(self.items) * 1_000 / self.each_ms;
        u32::try_from(items).unwrap_or(MAX_RATE).max(1)
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = SPANS.into_iter().find(|(_, ms)| *ms == self.each_ms).map_or("?", |(name, _)| name);
        write!(f, "{}/{name}", self.items)
    }
}

/// A text that is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rate: expected a number from 1 to 10000000 followed by /s, /min or /h, such as 100/s")]
pub struct NoRate;

impl FromStr for Rate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let (items, span) = text.split_once('/').ok_or(NoRate)?;
        let (_, each_ms) = SPANS.into_iter().find(|(name, _)| *name == span).ok_or(NoRate)?;
        let digits = !items.is_empty() && items.bytes().all(|byte| byte.is_ascii_digit());
        let items = items.parse().ok().filter(|_| digits);
        items.and_then(|items| Rate::new(items, each_ms)).ok_or(NoRate)
    }
}

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The rate, over any longer time.
    pub rate: Rate,
    /// Depth of the bucket, items, 1 to [`MAX_RATE`].
    pub burst: u32,
}

impl Bound {
    /// `burst`: 0 is the items of one second.
    pub fn new(rate: Rate, burst: u32) -> Self {
        Bound { rate, burst: if burst == 0 { rate.of_a_second() } else { burst } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for text in ["1/s", "100/s", "5/min", "10/h", "10000000/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in
            ["", "100", "/s", "0/s", "-1/s", "+1/s", "1/d", "1 /s", "10000001/s", "99999999999/s", "1/s/s"]
        {
            assert_eq!(text.parse::<Rate>(), Err(NoRate), "{text}");
        }
        let of_a_second = |text: &str| text.parse::<Rate>().unwrap().of_a_second();
        assert_eq!(["100/s", "120/min", "5/min", "7200/h"].map(of_a_second), [100, 2, 1, 2]);
    }
}
