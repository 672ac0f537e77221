//! Moments in RFC 3339, and no other form: `YYYY-MM-DDTHH:MM:SS[.fraction](Z|+HH:MM|-HH:MM)`.
//!
//! The wire, the admin port and the command line all read moments here. The calendar comes from the date
//! library. Its parser is not used: it accepts offsets that RFC 3339 does not have, moves a leap second back
//! by a second, and ends before the end of the year 9999, a common "never".

use jiff::civil::Date;

/// The direction in which a moment is rounded to whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Later, for times before which nothing may leave.
    Up,
    /// Sooner, for times by which everything must have left.
    Down,
}

/// Longest text, bytes: more digits of a fraction than needed in practice.
const LONGEST: usize = 64;
/// Length up to the seconds, and of an offset other than `Z`.
const SECONDS_END: usize = 19;
const OFFSET: usize = 6;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const EPOCH: Date = Date::constant(1970, 1, 1);

/// UTC milliseconds of RFC 3339 text, negative before 1970; `None` for any other text.
///
/// A leap second (`:60`) counts as the second after `:59`, as on clocks without leap seconds. `T` may be
/// lower case or a space, as RFC 3339 allows.
pub fn rfc3339_ms(text: &str, rounding: Rounding) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() > LONGEST {
        return None;
    }
    let (head, rest) = bytes.split_at_checked(SECONDS_END)?;
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if marks.iter().any(|(at, mark)| head[*at] != *mark) || !matches!(head[10], b'T' | b't' | b' ') {
        return None;
    }
    let part = |from: usize, to: usize| number(&head[from..to]);
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()?;
    let upto = |from: usize, to: usize, last: i64| part(from, to).filter(|value| *value <= last);
    let (hour, minute, second) = (upto(11, 13, 23)?, upto(14, 16, 59)?, upto(17, 19, 60)?);
    let (fraction, offset) = match rest.strip_prefix(b".") {
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            rest.split_at_checked(digits).filter(|_| digits > 0)?
        }
        None => (&[][..], rest),
    };
    let midnight = date.duration_since(EPOCH).as_secs();
    let seconds = midnight + hour * HOUR + minute * MINUTE + second - seconds(offset)?;
    let (whole, beyond) = fraction.split_at(fraction.len().min(3));
    let ms = whole.iter().chain(b"000").take(3).fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let up = rounding == Rounding::Up && beyond.iter().any(|digit| *digit != b'0');
    Some(seconds * 1_000 + ms + i64::from(up))
}

/// Seconds by which an offset is ahead of UTC.
fn seconds(offset: &[u8]) -> Option<i64> {
    let sign = match offset {
        b"Z" | b"z" => return Some(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    if offset.len() != OFFSET || offset[3] != b':' {
        return None;
    }
    let hours = number(&offset[1..3]).filter(|hours| *hours < 24)?;
    let minutes = number(&offset[4..6]).filter(|minutes| *minutes < 60)?;
    Some(sign * (hours * HOUR + minutes * MINUTE))
}

/// A number of digits only.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn up(text: &str) -> Option<i64> {
        rfc3339_ms(text, Rounding::Up)
    }

    #[test]
    fn what_rfc_3339_has() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2027-01-15T08:00:00Z", 1_800_000_000_000),
            ("2027-01-15t08:00:00z", 1_800_000_000_000),
            ("2027-01-15 08:00:00Z", 1_800_000_000_000),
            ("2027-01-15T08:00:00-00:00", 1_800_000_000_000),
            ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
            ("2027-01-16T07:59:00+23:59", 1_800_000_000_000),
            ("2027-01-14T08:01:00-23:59", 1_800_000_000_000),
            ("2027-01-15T08:00:00.5Z", 1_800_000_000_500),
            ("2027-01-15T08:00:00.050Z", 1_800_000_000_050),
            ("2027-01-15T08:00:00.0010000000000000000Z", 1_800_000_000_001),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000),
            ("2038-01-19T03:14:08Z", (1 << 31) * 1_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
            ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
            ("0000-02-29T00:00:00Z", -62_162_121_600_000),
        ] {
            assert_eq!(up(text), Some(ms), "{text}");
            assert_eq!(rfc3339_ms(text, Rounding::Down), Some(ms), "{text}");
        }
    }

    #[test]
    fn fractions_of_a_millisecond_go_to_the_side_that_is_asked_for() {
        for (text, before) in [
            ("2027-01-15T08:00:00.0001Z", 1_800_000_000_000),
            ("2027-01-15T08:00:00.9999Z", 1_800_000_000_999),
            ("2027-01-15T08:00:00.0000000000000000000001Z", 1_800_000_000_000),
            ("1969-12-31T23:59:59.9999Z", -1),
        ] {
            assert_eq!(rfc3339_ms(text, Rounding::Down), Some(before), "{text}");
            assert_eq!(up(text), Some(before + 1), "{text}");
        }
    }

    #[test]
    fn a_leap_second_is_never_due_sooner() {
        assert_eq!(up("2016-12-31T23:59:60Z"), up("2017-01-01T00:00:00Z"));
        assert_eq!(up("2016-12-31T23:59:60.25Z"), up("2017-01-01T00:00:00.25Z"));
        assert_eq!(up("1990-12-31T15:59:60-08:00"), up("1991-01-01T00:00:00Z"));
        assert_eq!(up("2016-12-31T23:59:61Z"), None);
    }

    #[test]
    fn what_rfc_3339_has_not() {
        for text in [
            "",
            "2027-01-15",
            "2027-01-15T08:00Z",
            "2027-01-15T08:00:00",
            "2027-01-15T08:00:00+24:00",
            "2027-01-15T08:00:00+25:59",
            "2027-01-15T08:00:00+01:60",
            "2027-01-15T08:00:00+0800",
            "2027-01-15T08:00:00+08",
            "2027-01-15T08:00:00+08:00:30",
            "2027-01-15T08:00:00+8:00",
            "2027-01-15T08:00:00 08:00",
            "2027-01-15T08:00:00,5Z",
            "2027-01-15T08:00:00.Z",
            "2027-01-15T08:00:00.5",
            "2027-01-15T08:00:00Zz",
            "2027-01-15T08:00:00Z[UTC]",
            "2027-01-15_08:00:00Z",
            "2027-13-15T08:00:00Z",
            "2027-00-15T08:00:00Z",
            "2027-01-00T08:00:00Z",
            "2027-01-32T08:00:00Z",
            "2027-02-29T08:00:00Z",
            "1900-02-29T08:00:00Z",
            "2027-01-15T24:00:00Z",
            "2027-01-15T08:60:00Z",
            "2027-1-015T08:00:00Z",
            "+02027-01-15T08:00:00Z",
            "2027-+1-15T08:00:00Z",
            "tomorrow at nine o'clock sharp",
            "ααααααααααααααα",
        ] {
            assert_eq!(up(text), None, "{text}");
        }
        assert_eq!(up(&format!("2027-01-15T08:00:00.{}Z", "0".repeat(60))), None, "it is too long");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = up(&text);
        }

        #[test]
        fn no_near_miss_panics(
            text in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9:.,+Zα-]{1,30}",
        ) {
            let _ = up(&text);
        }

        #[test]
        fn whole_milliseconds_survive(ms in -62_000_000_000_000..253_402_200_000_000_i64) {
            let written = jiff::Timestamp::from_millisecond(ms).unwrap().to_string();
            prop_assert_eq!(up(&written), Some(ms));
        }
    }
}
