//! Numbers and moments as producers write them, to whole milliseconds.
//!
//! Intermediate values are `i128` and saturate, so nothing here overflows. Fractions round away from zero: an
//! item never leaves early. There is no clock here: "now" is the moment of receipt, given.

use crate::config::terms::FIRST_PLAUSIBLE_MS;
use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use lapin::types::{AMQPValue, DecimalValue};

/// A value of a time field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// A bare number of milliseconds.
    Number(i128),
    /// A value that says itself which moment it is (AMQP timestamp, RFC 3339 text): UTC ms.
    Moment(i128),
}

/// What is wrong with a value of a time field; the text ends a sentence that begins with the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeFault {
    #[error("is neither a number of milliseconds nor RFC 3339 text with an offset")]
    NotATime,
    #[error("must be a number of milliseconds, not a point in time")]
    NotADelay,
    #[error("is too small for UTC milliseconds: seconds by mistake?")]
    Seconds,
}

/// Reads a header value. `None`: void or empty text, which is absent.
pub(super) fn of_header(value: &AMQPValue) -> Result<Option<Given>, TimeFault> {
    let number = |number: i64| Ok(Some(Given::Number(i128::from(number))));
    match value {
        AMQPValue::Void => Ok(None),
        AMQPValue::ShortShortInt(value) => number((*value).into()),
        AMQPValue::ShortShortUInt(value) => number((*value).into()),
        AMQPValue::ShortInt(value) => number((*value).into()),
        AMQPValue::ShortUInt(value) => number((*value).into()),
        AMQPValue::LongInt(value) => number((*value).into()),
        AMQPValue::LongUInt(value) => number((*value).into()),
        AMQPValue::LongLongInt(value) => number(*value),
        AMQPValue::Float(value) => of_float(f64::from(*value)).map(Some),
        AMQPValue::Double(value) => of_float(*value).map(Some),
        AMQPValue::DecimalValue(value) => Ok(Some(Given::Number(of_decimal(*value)))),
        // In seconds, by the protocol. Clients write moments before 1970 as two's complement, which is past:
        // now.
        AMQPValue::Timestamp(seconds) => Ok(Some(Given::Moment(i128::from(seconds.cast_signed()) * 1000))),
        AMQPValue::ShortString(text) => of_text(text.as_str().as_bytes()),
        AMQPValue::LongString(text) => of_text(text.as_bytes()),
        AMQPValue::ByteArray(text) => of_text(text.as_slice()),
        AMQPValue::Boolean(_) | AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => {
            Err(TimeFault::NotATime)
        }
    }
}

/// Reads text: a decimal number or RFC 3339. `None`: empty, which is absent.
pub(super) fn of_text(text: &[u8]) -> Result<Option<Given>, TimeFault> {
    if text.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(text).map_err(|_| TimeFault::NotATime)?;
    of_digits(text)
        .map(Given::Number)
        .or_else(|| of_rfc3339(text).map(Given::Moment))
        .map(Some)
        .ok_or(TimeFault::NotATime)
}

/// Reads a JSON number, which may have an exponent.
pub(super) fn of_json_number(text: &str) -> Result<Given, TimeFault> {
    match of_digits(text) {
        Some(number) => Ok(Given::Number(number)),
        None => of_float(text.parse().map_err(|_| TimeFault::NotATime)?),
    }
}

/// A point in time, UTC ms, between 0 and `i64::MAX`.
pub(super) fn moment(given: Given) -> Result<u64, TimeFault> {
    match given {
        Given::Number(number) if (0..i128::from(FIRST_PLAUSIBLE_MS)).contains(&number) => {
            Err(TimeFault::Seconds)
        }
        Given::Number(ms) | Given::Moment(ms) => Ok(to_ms(ms)),
    }
}

/// A delay, ms, between 0 and `i64::MAX`.
pub(super) fn delay(given: Given) -> Result<u64, TimeFault> {
    match given {
        Given::Number(number) => Ok(to_ms(number)),
        Given::Moment(_) => Err(TimeFault::NotADelay),
    }
}

fn to_ms(number: i128) -> u64 {
    u64::try_from(number.clamp(0, i128::from(i64::MAX))).unwrap_or(0)
}

fn of_float(number: f64) -> Result<Given, TimeFault> {
    if !number.is_finite() {
        return Err(TimeFault::NotATime);
    }
    let rounded = if number < 0.0 { number.floor() } else { number.ceil() };
    // The conversion saturates.
    Ok(Given::Number(rounded as i128))
}

/// RabbitMQ's decimal is signed, although the type here says otherwise.
fn of_decimal(decimal: DecimalValue) -> i128 {
    let value = i128::from(decimal.value as i32);
    let (whole, rest) = match 10_i128.checked_pow(u32::from(decimal.scale)) {
        Some(unit) => (value / unit, value % unit),
        None => (0, value),
    };
    whole + rest.signum()
}

/// `[+-]digits[.digits]`, nothing else; saturates.
fn of_digits(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let whole = whole
        .bytes()
        .fold(0_i128, |sum, digit| sum.saturating_mul(10).saturating_add(i128::from(digit - b'0')));
    let up = i128::from(fraction.bytes().any(|digit| digit != b'0'));
    let number = whole.saturating_add(up);
    Some(if negative { -number } else { number })
}

/// UTC ms of `YYYY-MM-DDTHH:MM:SS[.fraction](Z|+HH:MM)`. The parser knows more forms, which are not taken:
/// years of six digits, time zone names, no seconds.
fn of_rfc3339(text: &str) -> Option<i128> {
    const SHORTEST: usize = "2026-01-01T00:00:00Z".len();
    const LONGEST: usize = 64;
    let bytes = text.as_bytes();
    if !(SHORTEST..=LONGEST).contains(&bytes.len())
        || [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')].iter().any(|(at, expected)| bytes[*at] != *expected)
        || bytes.contains(&b'[')
    {
        return None;
    }
    let pieces = Pieces::parse(bytes).ok()?;
    let offset = i128::from(pieces.to_numeric_offset()?.seconds());
    // By civil time, because the last day of the year 9999, a usual "never", lies beyond the last instant
    // that the library has.
    let civil = DateTime::from_parts(pieces.date(), pieces.time()?);
    let since_epoch = civil.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0)).as_nanos();
    let nanos = since_epoch - offset * 1_000_000_000;
    let (whole, rest) = (nanos.div_euclid(1_000_000), nanos.rem_euclid(1_000_000));
    Some(whole + i128::from(rest > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(value: AMQPValue) -> Option<i128> {
        match of_header(&value) {
            Ok(Some(Given::Number(number))) => Some(number),
            _ => None,
        }
    }

    fn text(text: &str) -> Result<Option<Given>, TimeFault> {
        of_header(&AMQPValue::LongString(text.into()))
    }

    fn decimal(scale: u8, value: i32) -> AMQPValue {
        AMQPValue::DecimalValue(DecimalValue { scale, value: value as u32 })
    }

    #[test]
    fn every_numeric_type() {
        for (value, expected) in [
            (AMQPValue::ShortShortInt(-1), -1),
            (AMQPValue::ShortShortUInt(255), 255),
            (AMQPValue::ShortInt(-300), -300),
            (AMQPValue::ShortUInt(65_535), 65_535),
            (AMQPValue::LongInt(i32::MIN), i128::from(i32::MIN)),
            (AMQPValue::LongUInt(u32::MAX), i128::from(u32::MAX)),
            (AMQPValue::LongLongInt(1 << 32), 1 << 32),
            (AMQPValue::LongLongInt(i64::MAX), i128::from(i64::MAX)),
            (AMQPValue::LongLongInt(i64::MIN), i128::from(i64::MIN)),
            (AMQPValue::Float(1.5), 2),
            (AMQPValue::Double(1.5), 2),
            (AMQPValue::Double(-0.5), -1),
            (AMQPValue::Double(-0.0), 0),
            (AMQPValue::Double(1e300), i128::MAX),
            (AMQPValue::Double(-1e300), i128::MIN),
            (decimal(0, 1500), 1500),
            (decimal(1, 15), 2),
            (decimal(1, -15), -2),
            (decimal(2, 1500), 15),
            (decimal(255, i32::MAX), 1),
            (decimal(255, -1), -1),
            (decimal(255, 0), 0),
        ] {
            assert_eq!(number(value.clone()), Some(expected), "{value:?}");
        }
        for value in [
            AMQPValue::Double(f64::NAN),
            AMQPValue::Double(f64::INFINITY),
            AMQPValue::Float(f32::NEG_INFINITY),
            AMQPValue::Boolean(true),
            AMQPValue::FieldArray(Default::default()),
            AMQPValue::FieldTable(Default::default()),
        ] {
            assert_eq!(of_header(&value), Err(TimeFault::NotATime), "{value:?}");
        }
        assert_eq!(of_header(&AMQPValue::Void), Ok(None));
        assert_eq!(
            of_header(&AMQPValue::Timestamp(u64::MAX)),
            Ok(Some(Given::Moment(-1000))),
            "two's complement: a second before 1970"
        );
    }

    #[test]
    fn decimal_text() {
        for (given, expected) in [
            ("1500", 1500),
            ("+1500", 1500),
            ("-1", -1),
            ("1.5", 2),
            ("1.0", 1),
            ("-1.5", -2),
            ("1.000000000000000000000000000000001", 2),
            ("18446744073709551615", i128::from(u64::MAX)),
            ("0000000000000000000000000000000000000000000000000007", 7),
        ] {
            assert_eq!(text(given), Ok(Some(Given::Number(expected))), "{given}");
            let bytes = AMQPValue::ByteArray(given.as_bytes().into());
            assert_eq!(number(bytes), Some(expected), "{given}");
        }
        assert_eq!(text(&"9".repeat(1000)), Ok(Some(Given::Number(i128::MAX))));
        assert_eq!(text(&format!("-{}", "9".repeat(1000))), Ok(Some(Given::Number(-i128::MAX))));
        assert_eq!(text(""), Ok(None));
        for bad in
            ["-", "+", ".", "1.", ".5", "1e3", "0x10", " 1", "1 ", "1,5", "--1", "NaN", "inf", "٣", "1.5.2"]
        {
            assert_eq!(text(bad), Err(TimeFault::NotATime), "{bad}");
        }
        assert_eq!(of_header(&AMQPValue::LongString(vec![0xff].into())), Err(TimeFault::NotATime));
    }

    #[test]
    fn rfc3339() {
        for (given, expected) in [
            ("2038-01-19T03:14:08Z", (1_i128 << 31) * 1000),
            ("2026-01-01T00:00:00Z", 1_767_225_600_000),
            ("2026-01-01T00:00:00.000Z", 1_767_225_600_000),
            ("2026-01-01t00:00:00z", 1_767_225_600_000),
            ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
            ("2025-12-31T19:30:00-04:30", 1_767_225_600_000),
            ("2026-01-01T00:00:00.0001Z", 1_767_225_600_001),
            ("1969-12-31T23:59:59.999Z", -1),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(text(given), Ok(Some(Given::Moment(expected))), "{given}");
        }
        for bad in [
            "2026-01-01T00:00:00",
            "2026-01-01",
            "2026-01-01T00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00+01:00[Europe/Paris]",
            "+002026-01-01T00:00:00Z",
            "tomorrow at nine o'clock sharp",
            "ααααααααααααααα",
        ] {
            assert_eq!(text(bad), Err(TimeFault::NotATime), "{bad}");
        }
    }

    #[test]
    fn json_numbers() {
        for (given, expected) in
            [("0", 0), ("-1", -1), ("1.5", 2), ("1.5e3", 1500), ("1E-1", 1), ("1e300", i128::MAX)]
        {
            assert_eq!(of_json_number(given), Ok(Given::Number(expected)), "{given}");
        }
        assert_eq!(of_json_number("1e999"), Err(TimeFault::NotATime));
    }

    #[test]
    fn moments_and_delays() {
        let limit = i128::from(FIRST_PLAUSIBLE_MS);
        assert_eq!(moment(Given::Number(limit)), Ok(FIRST_PLAUSIBLE_MS));
        assert_eq!(moment(Given::Number(limit - 1)), Err(TimeFault::Seconds));
        assert_eq!(moment(Given::Number(0)), Err(TimeFault::Seconds));
        assert_eq!(moment(Given::Number(-1)), Ok(0));
        assert_eq!(moment(Given::Moment(5)), Ok(5));
        assert_eq!(moment(Given::Number(i128::MAX)), Ok(i64::MAX as u64));
        assert_eq!(delay(Given::Number(-5)), Ok(0));
        assert_eq!(delay(Given::Number(1 << 32)), Ok(1 << 32));
        assert_eq!(delay(Given::Moment(5)), Err(TimeFault::NotADelay));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<Vec<u8>>()) {
            let _ = of_text(&text);
        }

        #[test]
        fn no_near_miss_panics(
            text in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9:.,+Zα-]{1,30}",
        ) {
            let _ = of_text(text.as_bytes());
        }

        #[test]
        fn whole_milliseconds_survive(ms in 0..253_402_200_000_000_i64) {
            let written = jiff::Timestamp::from_millisecond(ms).unwrap().to_string();
            prop_assert_eq!(of_text(written.as_bytes()), Ok(Some(Given::Moment(i128::from(ms)))));
        }
    }
}
