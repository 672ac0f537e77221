//! Numbers and moments as producers write them, to whole milliseconds.
//!
//! Intermediate values are `i128` and saturate, so nothing here overflows. Fractions round up, since an item
//! never leaves early; those of an expiry round down, since the item leaves before it. A value below 0 is
//! over in any case and rounds away from 0. There is no clock here: "now" is the moment of receipt, which the
//! caller gives.

use super::header_value::{header_value, HeaderValue};
use lapin::types::{AMQPValue, DecimalValue};
use tidegate_config::rfc3339::{rfc3339_ms, Rounding};
use tidegate_config::terms::FIRST_PLAUSIBLE_MS;

/// A value of a time field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A bare number of milliseconds.
    Number(i128),
    /// A value that says itself which moment it is (AMQP timestamp, RFC 3339 text): UTC ms.
    Moment(i128),
    /// Text of neither form. What it should have been depends on the field.
    Text,
}

/// What is wrong with a value of a time field; the text ends a sentence that begins with the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TimeFault {
    /// Of a type, or a number, that fits no time field.
    #[error("is not a time")]
    NotATime,
    #[error("is neither a number of milliseconds nor RFC 3339 text with an offset")]
    NotAMoment,
    #[error("is not a number of milliseconds")]
    NotANumber,
    #[error("must be a number of milliseconds, not a point in time")]
    NotADelay,
    #[error("is too small for UTC milliseconds: seconds by mistake?")]
    Seconds,
}

/// Reads a header value. `None`: void or empty text, which is absent.
pub(crate) fn of_header(value: &AMQPValue, rounding: Rounding) -> Result<Option<Given>, TimeFault> {
    match header_value(value) {
        HeaderValue::Absent => Ok(None),
        HeaderValue::Integer(number) => Ok(Some(Given::Number(number.into()))),
        HeaderValue::Text(text) => of_text(text, rounding),
        HeaderValue::Float(number) => of_float(number, rounding).map(Some),
        HeaderValue::Decimal(number) => Ok(Some(Given::Number(of_decimal(number, rounding)))),
        // Clients write moments before 1970 as two's complement, which is past: now.
        HeaderValue::Timestamp(seconds) => Ok(Some(Given::Moment(i128::from(seconds.cast_signed()) * 1000))),
        HeaderValue::Other => Err(TimeFault::NotATime),
    }
}

/// Reads text: a decimal number or RFC 3339. `None`: empty, which is absent.
pub(crate) fn of_text(text: &[u8], rounding: Rounding) -> Result<Option<Given>, TimeFault> {
    if text.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(text).map_err(|_| TimeFault::NotATime)?;
    let number = of_digits(text, rounding).map(Given::Number);
    let given = number.or_else(|| rfc3339_ms(text, rounding).map(|ms| Given::Moment(ms.into())));
    Ok(given.or(Some(Given::Text)))
}

/// Reads a JSON number, which may have an exponent.
pub(crate) fn of_json_number(text: &str, rounding: Rounding) -> Result<Given, TimeFault> {
    match of_digits(text, rounding) {
        Some(number) => Ok(Given::Number(number)),
        None => of_float(text.parse().map_err(|_| TimeFault::NotATime)?, rounding),
    }
}

/// A point in time, UTC ms, between 0 and `i64::MAX`.
pub(crate) fn moment(given: Given) -> Result<u64, TimeFault> {
    match given {
        Given::Number(number) if (0..i128::from(FIRST_PLAUSIBLE_MS)).contains(&number) => {
            Err(TimeFault::Seconds)
        }
        Given::Number(ms) | Given::Moment(ms) => Ok(to_ms(ms)),
        Given::Text => Err(TimeFault::NotAMoment),
    }
}

/// A delay, ms, between 0 and `i64::MAX`.
pub(crate) fn delay(given: Given) -> Result<u64, TimeFault> {
    match given {
        Given::Number(number) => Ok(to_ms(number)),
        Given::Moment(_) => Err(TimeFault::NotADelay),
        Given::Text => Err(TimeFault::NotANumber),
    }
}

fn to_ms(number: i128) -> u64 {
    u64::try_from(number.clamp(0, i128::from(i64::MAX))).unwrap_or(0)
}

fn of_float(number: f64, rounding: Rounding) -> Result<Given, TimeFault> {
    if !number.is_finite() {
        return Err(TimeFault::NotATime);
    }
    let down = number < 0.0 || rounding == Rounding::Down;
    let rounded = if down { number.floor() } else { number.ceil() };
    // The conversion saturates.
    Ok(Given::Number(rounded as i128))
}

/// RabbitMQ's decimal is signed, although the type here says otherwise.
fn of_decimal(decimal: DecimalValue, rounding: Rounding) -> i128 {
    let value = i128::from(decimal.value as i32);
    let (whole, rest) = match 10_i128.checked_pow(u32::from(decimal.scale)) {
        Some(unit) => (value / unit, value % unit),
        None => (0, value),
    };
    whole + beyond(value < 0, rest != 0, rounding)
}

/// Adjustment of the whole milliseconds for a rest beyond them.
fn beyond(negative: bool, rest: bool, rounding: Rounding) -> i128 {
    match (rest, negative) {
        (true, true) => -1,
        (true, false) if rounding == Rounding::Up => 1,
        (true | false, _) => 0,
    }
}

/// `[+-]digits[.digits]`, nothing else; saturates.
fn of_digits(text: &str, rounding: Rounding) -> Option<i128> {
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
    let number = if negative { -whole } else { whole };
    let rest = fraction.bytes().any(|digit| digit != b'0');
    Some(number.saturating_add(beyond(negative, rest, rounding)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn up(value: &AMQPValue) -> Result<Option<Given>, TimeFault> {
        of_header(value, Rounding::Up)
    }

    fn number(value: AMQPValue) -> Option<i128> {
        match up(&value) {
            Ok(Some(Given::Number(number))) => Some(number),
            _ => None,
        }
    }

    fn text(text: &str) -> Result<Option<Given>, TimeFault> {
        up(&AMQPValue::LongString(text.into()))
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
            assert_eq!(up(&value), Err(TimeFault::NotATime), "{value:?}");
        }
        assert_eq!(up(&AMQPValue::Void), Ok(None));
        assert_eq!(
            up(&AMQPValue::Timestamp(u64::MAX)),
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
            assert_eq!(text(bad), Ok(Some(Given::Text)), "{bad}");
        }
        assert_eq!(up(&AMQPValue::LongString(vec![0xff].into())), Err(TimeFault::NotATime));
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
            assert_eq!(text(bad), Ok(Some(Given::Text)), "{bad}");
        }
    }

    #[test]
    fn an_expiry_rounds_down() {
        let down = |value: AMQPValue| of_header(&value, Rounding::Down).unwrap().unwrap();
        let text = |text: &str| AMQPValue::LongString(text.into());
        for (value, expected) in [
            (AMQPValue::Float(1.5), 1),
            (AMQPValue::Double(1.999), 1),
            (AMQPValue::Double(-0.5), -1),
            (decimal(1, 15), 1),
            (decimal(1, -15), -2),
            (decimal(255, i32::MAX), 0),
            (text("1.9"), 1),
            (text("-1.9"), -2),
            (text("7"), 7),
        ] {
            assert_eq!(down(value.clone()), Given::Number(expected), "{value:?}");
        }
        assert_eq!(down(text("2026-01-01T00:00:00.0009Z")), Given::Moment(1_767_225_600_000));
        assert_eq!(of_json_number("1.5e-1", Rounding::Down), Ok(Given::Number(0)));
    }

    #[test]
    fn json_numbers() {
        for (given, expected) in
            [("0", 0), ("-1", -1), ("1.5", 2), ("1.5e3", 1500), ("1E-1", 1), ("1e300", i128::MAX)]
        {
            assert_eq!(of_json_number(given, Rounding::Up), Ok(Given::Number(expected)), "{given}");
        }
        assert_eq!(of_json_number("1e999", Rounding::Up), Err(TimeFault::NotATime));
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
        assert_eq!(moment(Given::Text), Err(TimeFault::NotAMoment));
        assert_eq!(delay(Given::Text), Err(TimeFault::NotANumber));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<Vec<u8>>()) {
            let _ = of_text(&text, Rounding::Up);
        }
    }
}
