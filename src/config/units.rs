//! Leaf values and their bounds, as serde seeds: whole numbers, durations, sizes, flags, words, text.
//!
//! Each error is a sentence with the correct form. Errors about text never quote it, as it may be a secret.

use super::finding::nearest;
use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use serde_json::{json, Value};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;
use tidegate_types::Rate;

/// The longest duration of any key: 100 years. The sum of a few of them is far below 64 bits of ms.
pub(crate) const LONGEST: Duration = Duration::from_secs(36_500 * 24 * 3_600);

/// A value as JSON Schema describes it.
pub(crate) trait Shape {
    /// The keywords that apply to every value that this seed accepts, and to few others.
    fn shape(&self) -> Value;
}

/// Makes a seed of a visitor; both are the same value.
macro_rules! seed {
    ($name:ident, $out:ty) => {
        impl<'de> DeserializeSeed<'de> for $name {
            type Value = $out;
            fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<$out, D::Error> {
                d.deserialize_any(self)
            }
        }
    };
}

/// A whole number within bounds.
#[derive(Clone)]
pub(crate) struct Whole(pub RangeInclusive<u64>);

seed!(Whole, u64);

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<u64, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::custom(format_args!("{n} is not {}", WantedValue(&self)))),
        }
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<u64, E> {
        if self.0.contains(&n) {
            Ok(n)
        } else {
            Err(E::custom(format_args!("{n} is not {}", WantedValue(&self))))
        }
    }
}

impl Shape for Whole {
    fn shape(&self) -> Value {
        json!({ "type": "integer", "minimum": self.0.start(), "maximum": self.0.end() })
    }
}

/// Prints what a visitor expects.
struct WantedValue<'v, V>(&'v V);

impl<'de, V: Visitor<'de>> fmt::Display for WantedValue<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
}

/// Whether numbers could reach the end of [`Duration`], where humantime panics.
fn has_too_many_digits(text: &str) -> bool {
    text.len() > 64 || text.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > 10)
}

/// Reads a duration outside of a configuration, such as `3s` or `1h 30m`: at most 100 years.
///
/// # Errors
///
/// A text that says what is wrong with it.
pub fn span(text: &str) -> Result<Duration, String> {
    if has_too_many_digits(text) {
        return Err("too many digits".to_owned());
    }
    let span = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if span > LONGEST {
        return Err(format!("too long: at most {}d", LONGEST.as_secs() / 86_400));
    }
    Ok(span)
}

/// A duration of whole milliseconds within bounds.
#[derive(Clone)]
pub(crate) struct Span(pub RangeInclusive<Duration>);

impl Span {
    /// Durations of at least `ms` milliseconds.
    pub(crate) fn from_ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms)..=LONGEST)
    }
}

seed!(Span, Duration);

impl Visitor<'_> for Span {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a duration in quotes, such as "3s", "1500ms" or "1h30m""#)
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Duration, E> {
        Err(E::custom(format_args!(r#"{n} has no unit: write "{n}s" or "{n}ms", in quotes"#)))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Duration, E> {
        Err(E::custom(format_args!(r#"{n} has no unit: write "{n}s", in quotes"#)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(E::custom(format_args!(r#"{text} has no unit: write "{text}s" or "{text}ms""#)));
        }
        if has_too_many_digits(text) {
            return Err(E::custom(format_args!("is not {}: too many digits", WantedValue(&self))));
        }
        let span = humantime::parse_duration(text)
            .map_err(|e| E::custom(format_args!("{text:?} is not {}: {e}", WantedValue(&self))))?;
        if span.subsec_nanos() % 1_000_000 != 0 {
            return Err(E::custom("is finer than a millisecond"));
        }
        if span < *self.0.start() {
            let least = humantime::format_duration(*self.0.start());
            return Err(E::custom(format_args!("{text} is too short: at least {least}")));
        }
        if span > *self.0.end() {
            let days = self.0.end().as_secs() / 86_400;
            let most = humantime::format_duration(*self.0.end()).to_string();
            let most = if days > 0 { format!("{days}d") } else { most };
            return Err(E::custom(format_args!("{text} is too long: at most {most}")));
        }
        Ok(span)
    }
}

impl Shape for Span {
    fn shape(&self) -> Value {
        json!({ "type": "string", "pattern": "^([0-9]+ *[a-zA-Z]+ *)+$" })
    }
}

/// A number of bytes within bounds.
#[derive(Clone)]
pub(crate) struct Size(pub RangeInclusive<u64>);

seed!(Size, u64);

/// Units of sizes, with their factors.
const UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Visitor<'_> for Size {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a size in quotes, such as "512KiB", "1MiB" or "8MB""#)
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<u64, E> {
        Err(E::custom(format_args!(r#"{n} has no unit: write "{n}B" or "{n}MiB", in quotes"#)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let wrong = || E::custom(format_args!("{text:?} is not {}", WantedValue(&self)));
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        if unit.is_empty() {
            return Err(E::custom(format_args!(
                r#"{number} has no unit: write "{number}B" or "{number}MiB""#
            )));
        }
        let unit = unit.trim_start_matches(' ');
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, f)| f).ok_or_else(wrong)?;
        let bytes =
            number.checked_mul(factor).ok_or_else(|| E::custom(format_args!("{text} is too large")))?;
        if bytes < *self.0.start() {
            return Err(E::custom(format_args!("{text} is too small: at least {}", size(*self.0.start()))));
        }
        if bytes > *self.0.end() {
            return Err(E::custom(format_args!("{text} is too large: at most {}", size(*self.0.end()))));
        }
        Ok(bytes)
    }
}

impl Shape for Size {
    fn shape(&self) -> Value {
        let units: Vec<_> = UNITS.iter().map(|(name, _)| *name).collect();
        json!({ "type": "string", "pattern": format!("^[0-9]+ *({})$", units.join("|")) })
    }
}

/// A number of bytes as text, in the largest unit that divides it.
pub(crate) fn size(bytes: u64) -> String {
    let binary = UNITS[6..].iter().rev().chain(&UNITS[..1]);
    match binary.into_iter().find(|(_, f)| bytes > 0 && bytes.is_multiple_of(*f)) {
        Some((unit, f)) => format!("{}{unit}", bytes / f),
        None => format!("{bytes}B"),
    }
}

/// A value `true` or `false`.
#[derive(Clone)]
pub(crate) struct Flag;

seed!(Flag, bool);

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false, without quotes")
    }

    fn visit_bool<E: Error>(self, b: bool) -> Result<bool, E> {
        Ok(b)
    }
}

impl Shape for Flag {
    fn shape(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// One of several words, each of which stands for a value.
#[derive(Clone)]
pub(crate) struct Words<T: 'static>(pub &'static [(&'static str, T)]);

impl<'de, T: Copy> DeserializeSeed<'de> for Words<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<T, D::Error> {
        d.deserialize_any(self)
    }
}

impl<T: Copy> Visitor<'_> for Words<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of")?;
        for (n, (word, _)) in self.0.iter().enumerate() {
            write!(f, "{} {word:?}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        if let Some((_, value)) = self.0.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let wanted = WantedValue(&self);
        Err(match nearest(text, self.0.iter().map(|&(word, _)| word)) {
            Some(word) => E::custom(format_args!("{text:?} is not {wanted}; did you mean `{word}`?")),
            None => E::custom(format_args!("{text:?} is not {wanted}")),
        })
    }
}

impl<T> Shape for Words<T> {
    fn shape(&self) -> Value {
        let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
        json!({ "enum": words })
    }
}

/// A rate of items, such as `100/s`; `off`: no limit.
#[derive(Clone)]
pub(crate) struct RateText;

seed!(RateText, Option<Rate>);

impl Visitor<'_> for RateText {
    type Value = Option<Rate>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a rate in quotes, such as "100/s", "5/min" or "10/h", or "off""#)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<Rate>, E> {
        match text {
            "off" => Ok(None),
            text => text.parse().map(Some).map_err(|error| E::custom(format_args!("{text:?}: {error}"))),
        }
    }
}

impl Shape for RateText {
    fn shape(&self) -> Value {
        json!({ "type": "string", "pattern": "^([1-9][0-9]{0,7}/(s|min|h)|off)$" })
    }
}

/// Any text. A value of another type is not quoted.
#[derive(Clone)]
pub(crate) struct Text;

seed!(Text, String);

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<String, E> {
        Err(E::custom("is a number; expected text in quotes"))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<String, E> {
        Err(E::custom("is a number; expected text in quotes"))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<String, E> {
        Err(E::custom("is a number; expected text in quotes"))
    }
}

impl Shape for Text {
    fn shape(&self) -> Value {
        json!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::value::{Error as Plain, StrDeserializer};
    use serde::de::IntoDeserializer;

    fn of<'a, S: DeserializeSeed<'a>>(seed: S, text: &'a str) -> Result<S::Value, String> {
        let d: StrDeserializer<'a, Plain> = text.into_deserializer();
        seed.deserialize(d).map_err(|e| e.to_string())
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("3s", 3_000),
            ("1500ms", 1_500),
            ("25m", 1_500_000),
            ("1h30m", 5_400_000),
            ("3650d", 315_360_000_000),
            ("0s", 0),
            ("0ms", 0),
        ] {
            assert_eq!(of(Span::from_ms(0), text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (text, part) in [
            ("5", r#"5 has no unit: write "5s" or "5ms""#),
            ("", "is not a duration"),
            ("-3s", "is not a duration"),
            ("3 parsecs", "is not a duration"),
            ("500us", "finer than a millisecond"),
            ("36501d", "at most 36500d"),
            ("99999999999999999999999y", "too many digits"),
            ("584542046090y28687s1000ms", "too many digits"),
            ("9999999999y", "at most 36500d"),
        ] {
            let error = of(Span::from_ms(0), text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(of(Span::from_ms(1), "0s").unwrap_err(), "0s is too short: at least 1ms");
    }

    #[test]
    fn sizes() {
        let any = || Size(0..=u64::MAX);
        for (text, bytes) in [
            ("0B", 0),
            ("1MiB", 1 << 20),
            ("8MB", 8_000_000),
            ("256 MiB", 1 << 28),
            ("3kB", 3_000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(of(any(), text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "1Mib",
            "1mb",
            "-1B",
            "1.5MiB",
            "1",
            "99999999999TiB",
            "99999999999999999999B",
            "1MiBé",
        ] {
            assert!(of(any(), text).is_err(), "{text}");
        }
        assert_eq!(of(Size(1024..=4096), "1B").unwrap_err(), "1B is too small: at least 1KiB");
        assert_eq!(of(Size(1024..=4096), "1MiB").unwrap_err(), "1MiB is too large: at most 4KiB");
        assert_eq!(
            (size(0), size(1), size(1 << 20), size(1500)),
            ("0B".into(), "1B".into(), "1MiB".into(), "1500B".into())
        );
    }

    #[test]
    fn words() {
        let seed = || Words(&[("pause", 1), ("flush-early", 2)]);
        assert_eq!(of(seed(), "flush-early"), Ok(2));
        let error = of(seed(), "flush_early").unwrap_err();
        assert_eq!(
            error,
            r#""flush_early" is not one of "pause", "flush-early"; did you mean `flush-early`?"#
        );
    }
}
