//! The contract's fields, one by one: which headers carry them, what they may contain, and the sentence if
//! they do not.

use super::event;
use super::header_value::{header_value, HeaderValue};
use super::time::{self, Given, TimeFault};
use super::trace::TRACEPARENT;
use lapin::types::{AMQPValue, FieldTable};
use lapin::BasicProperties;
use std::borrow::Cow;
use std::fmt::Display;
use tidegate_config::rfc3339::Rounding;
use tidegate_config::terms::batch_header;
pub(crate) use tidegate_config::terms::request_header::*;
use tidegate_types::{Dead, DuplicateRule, Reason};

/// Where RabbitMQ notes the time of a message's arrival, ms (its timestamp interceptor).
pub(crate) const TIMESTAMP_IN_MS: &str = "timestamp_in_ms";
/// That header in a sentence.
const NOTED: &str = "timestamp_in_ms, which delays count from,";
/// Where RabbitMQ notes that it has moved a message.
pub(crate) const DEATHS: &str = "x-death";
/// Set on what is sent back, with another value each time: so equal bytes are another request, and not a
/// redelivery of the ended one.
pub(crate) const RETRIED: &str = "x-tidegate-retried";
/// Header of a moved item. A step of a move may be repeated, and what was cancelled or has died in between
/// must not come to life again. So a request with this header is judged as one that the broker delivers
/// again: it is dropped if an equal one has ended.
pub(crate) const MOVED: &str = "x-tidegate-moved";
/// Longest error sentence, bytes. It travels as a header.
const MAX_SENTENCE: usize = 500;
/// Most characters of an offending value that are repeated in a sentence.
const MAX_SHOWN: usize = 60;

/// The headers with a meaning, found in one pass over the table. Void ones are absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields<'a> {
    pub application: Option<&'a AMQPValue>,
    pub customer: Option<&'a AMQPValue>,
    pub deliver_at: Option<&'a AMQPValue>,
    pub delay: Option<&'a AMQPValue>,
    pub opt_delivery_time: Option<&'a AMQPValue>,
    pub opt_delivery_delay: Option<&'a AMQPValue>,
    pub deliver_before: Option<&'a AMQPValue>,
    pub on_duplicate: Option<&'a AMQPValue>,
    /// The batch in which it came to its consumer.
    pub batch: Option<&'a AMQPValue>,
    /// A broker has moved it.
    pub died: bool,
    /// One of the others may be an attribute of an event.
    pub event: bool,
    /// One of them may be a trace context.
    pub traced: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn gather(headers: Option<&'a FieldTable>) -> Self {
        let mut fields = Fields::default();
        for (name, value) in headers.into_iter().flatten() {
            if let Some(slot) = fields.slot(name.as_str()) {
                *slot = Some(value).filter(|value| !matches!(value, AMQPValue::Void));
            } else {
                match name.as_str() {
                    TRACEPARENT => fields.traced = true,
                    batch_header::BATCH => fields.batch = Some(value),
                    DEATHS => fields.died = true,
                    name => fields.event |= event::is_attribute(name),
                }
            }
        }
        fields
    }

    fn slot(&mut self, name: &str) -> Option<&mut Option<&'a AMQPValue>> {
        Some(match name {
            APPLICATION => &mut self.application,
            CUSTOMER => &mut self.customer,
            DELIVER_AT => &mut self.deliver_at,
            DELAY => &mut self.delay,
            OPT_DELIVERY_TIME => &mut self.opt_delivery_time,
            OPT_DELIVERY_DELAY => &mut self.opt_delivery_delay,
            DELIVER_BEFORE => &mut self.deliver_before,
            ON_DUPLICATE => &mut self.on_duplicate,
            _ => return None,
        })
    }

    /// The name that a header without meaning was probably meant to have: another case, underscores, or no
    /// `x-`.
    pub(crate) fn meant(name: &str) -> Option<&'static str> {
        let same = |a: u8, b: u8| a.eq_ignore_ascii_case(&b) || (a == b'_' && b == b'-');
        let alike = |given: &str, meant: &str| {
            given.len() == meant.len() && given.bytes().zip(meant.bytes()).all(|(a, b)| same(a, b))
        };
        if Fields::is_field(name) {
            return None;
        }
        // `application`, `customer` and the like are ordinary words; without `x-` only names of times count.
        let bare = |meant: &'static str| meant.strip_prefix("x-").filter(|rest| rest.starts_with("de"));
        ALL.into_iter().find(|meant| alike(name, meant) || bare(meant).is_some_and(|rest| alike(name, rest)))
    }

    /// Whether this header carries a field.
    pub(crate) fn is_field(name: &str) -> bool {
        Fields::default().slot(name).is_some()
    }
}

/// Whether a request is a moved item, and may have been published before.
pub fn is_moved(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|headers| headers.contains_key(MOVED))
}

/// Headers that a broker writes into each message that is published, if it is configured so
/// (`message_interceptors`).
pub(crate) fn is_stamp(name: &str) -> bool {
    matches!(name, TIMESTAMP_IN_MS | "x-routed-by")
}

/// For each header that nearly has the name of one with a meaning, the name that was probably meant.
pub fn near_misses(headers: Option<&FieldTable>) -> impl Iterator<Item = &'static str> + '_ {
    headers.into_iter().flatten().filter_map(|(name, _)| Fields::meant(name.as_str()))
}

/// A verdict of reason `invalid`; the sentence is cut to a bound.
pub(crate) fn invalid(sentence: impl Into<String>) -> Dead {
    verdict(Reason::Invalid, sentence)
}

/// A verdict; the sentence is cut to a bound.
pub(crate) fn verdict(reason: Reason, sentence: impl Into<String>) -> Dead {
    let mut sentence = sentence.into();
    if sentence.contains(char::is_control) {
        // A parser's error text may repeat a key as it came.
        sentence = sentence.replace(char::is_control, " ");
    }
    if sentence.len() > MAX_SENTENCE {
        let mut end = MAX_SENTENCE;
        while !sentence.is_char_boundary(end) {
            end -= 1;
        }
        sentence.truncate(end);
        sentence.push_str("...");
    }
    Dead { reason, error: sentence.into() }
}

/// The text in a header. An integer counts as its decimal text; empty is absent.
pub(crate) fn text<'a>(
    name: &str,
    value: Option<&'a AMQPValue>,
    max: usize,
) -> Result<Option<Cow<'a, str>>, Dead> {
    let Some(value) = value else { return Ok(None) };
    let text = match header_value(value) {
        HeaderValue::Absent => return Ok(None),
        HeaderValue::Text(bytes) => std::str::from_utf8(bytes)
            .map(Cow::Borrowed)
            .map_err(|_| invalid(format!("{name} is not UTF-8: {}", show(value))))?,
        HeaderValue::Integer(number) => Cow::Owned(number.to_string()),
        HeaderValue::Float(_) | HeaderValue::Decimal(_) | HeaderValue::Timestamp(_) | HeaderValue::Other => {
            return Err(invalid(format!("{name} must be text or an integer, not {}", show(value))));
        }
    };
    bounded(name, text, max)
}

/// Empty is absent; longer than `max` bytes is a fault.
pub(crate) fn bounded<'a>(name: &str, text: Cow<'a, str>, max: usize) -> Result<Option<Cow<'a, str>>, Dead> {
    match text.len() {
        0 => Ok(None),
        length if length > max => {
            Err(invalid(format!("{name} is {length} bytes long, more than {max}: {}", show_text(&text))))
        }
        _ => Ok(Some(text)),
    }
}

/// Reads the rule's name as the contract writes it.
pub(crate) fn duplicate_rule(name: &str, text: Option<&str>) -> Result<DuplicateRule, Dead> {
    match text {
        None | Some("keep") => Ok(DuplicateRule::Keep),
        Some("replace") => Ok(DuplicateRule::Replace),
        Some("earliest") => Ok(DuplicateRule::Earliest),
        Some("latest") => Ok(DuplicateRule::Latest),
        Some("reject") => Ok(DuplicateRule::Reject),
        Some(other) => Err(invalid(format!(
            "{name} must be keep, replace, earliest, latest or reject, not {}",
            show_text(other)
        ))),
    }
}

/// When a request was made, if its delays count from then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// Not stated: delays count from the receipt.
    Unknown,
    /// At this moment, UTC ms.
    At(u64),
    /// The noted time of arrival is too early to be in ms: no delay can count from it.
    TooEarly(u64),
}

/// Gathers the fields that name an own time, which must all mean the same moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnTime {
    received: u64,
    made: Made,
    max_delay: u64,
    found: Option<(&'static str, u64)>,
}

impl OwnTime {
    /// `received`: UTC ms; `max_delay`: ms, from the receipt.
    pub(crate) fn new(received: u64, made: Made, max_delay: u64) -> Self {
        OwnTime { received, made, max_delay, found: None }
    }

    /// Adds a point in time; a past one counts as now.
    pub(crate) fn at(
        &mut self,
        name: &'static str,
        given: Option<Given>,
        shown: impl Display,
    ) -> Result<(), Dead> {
        let Some(given) = given else { return Ok(()) };
        let at = time::moment(given).map_err(|fault| time_fault(name, fault, shown))?;
        self.add(name, at.max(self.received))
    }

    /// Adds a delay from the moment of receipt, or from when the request was made; a negative one counts as
    /// 0.
    pub(crate) fn after(
        &mut self,
        name: &'static str,
        given: Option<Given>,
        shown: impl Display,
    ) -> Result<(), Dead> {
        let Some(given) = given else { return Ok(()) };
        let delay = time::delay(given).map_err(|fault| time_fault(name, fault, shown))?;
        if let Made::TooEarly(noted) = self.made {
            return Err(time_fault(NOTED, TimeFault::Seconds, noted));
        }
        self.add(name, self.delays_from().saturating_add(delay).max(self.received))
    }

    fn delays_from(&self) -> u64 {
        match self.made {
            Made::At(made) => made,
            Made::Unknown | Made::TooEarly(_) => self.received,
        }
    }

    /// The delay that ends at `moment`, ms; 0 if that is over.
    pub(crate) fn delay_until(&self, moment: u64) -> u64 {
        moment.saturating_sub(self.delays_from())
    }

    /// UTC ms, not before the moment of receipt.
    pub(crate) fn moment(self) -> Option<u64> {
        self.found.map(|(_, moment)| moment)
    }

    fn add(&mut self, name: &'static str, moment: u64) -> Result<(), Dead> {
        let ahead = moment - self.received.min(moment);
        if ahead > self.max_delay {
            let from = Some(self.delays_from()).filter(|from| *from > self.received);
            let from = from.map(|made| format!("; its timestamp, {made} ms, is in the future itself"));
            return Err(invalid(format!(
                "{name} is {ahead} ms ahead, beyond limits.max_delay ({} ms){}",
                self.max_delay,
                from.unwrap_or_default()
            )));
        }
        match self.found {
            Some((other, earlier)) if earlier != moment => Err(invalid(format!(
                "{other} and {name} mean different moments ({earlier} and {moment}, UTC ms)"
            ))),
            _ => {
                self.found = Some((name, moment));
                Ok(())
            }
        }
    }
}

/// A point in time by which the item must have left; UTC ms.
pub(crate) fn expiry(name: &str, given: Option<Given>, shown: impl Display) -> Result<Option<u64>, Dead> {
    given.map(|given| time::moment(given).map_err(|fault| time_fault(name, fault, shown))).transpose()
}

/// The value of a time header.
pub(crate) fn given(
    name: &str,
    value: Option<&AMQPValue>,
    rounding: Rounding,
) -> Result<Option<Given>, Dead> {
    let Some(value) = value else { return Ok(None) };
    time::of_header(value, rounding).map_err(|fault| time_fault(name, fault, show(value)))
}

/// The sentence for a fault in a time field.
pub(crate) fn time_fault(name: &str, fault: TimeFault, shown: impl Display) -> Dead {
    invalid(format!("{name} {fault}: {shown}"))
}

/// A header's value for a sentence: short, on one line.
pub(crate) fn show(value: &AMQPValue) -> String {
    match value {
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        // Not `{}`, which would write 1e300 with all its zeros.
        AMQPValue::Float(value) => format!("{value:?}"),
        AMQPValue::Double(value) => format!("{value:?}"),
        AMQPValue::DecimalValue(value) => format!("decimal {}e-{}", value.value as i32, value.scale),
        AMQPValue::ShortString(value) => show_text(value.as_str()),
        AMQPValue::LongString(value) => show_bytes(value.as_bytes()),
        AMQPValue::ByteArray(value) => show_bytes(value.as_slice()),
        AMQPValue::Timestamp(value) => format!("timestamp {value} s"),
        AMQPValue::FieldArray(_) => "an array".into(),
        AMQPValue::FieldTable(_) => "a table".into(),
        AMQPValue::Void => "void".into(),
    }
}

/// Text for a sentence: quoted, escaped, cut.
pub(crate) fn show_text(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    shown.insert(0, '"');
    shown.push('"');
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

fn show_bytes(bytes: &[u8]) -> String {
    // More than is shown, so that a character that is cut at the end is not.
    show_text(&String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN * 5)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_right_names_are_noticed_and_others_are_not() {
        for (given, meant) in [
            ("X-Delay", Some(DELAY)),
            ("x_delay", Some(DELAY)),
            ("delay", Some(DELAY)),
            ("Deliver-At", Some(DELIVER_AT)),
            ("deliver_before", Some(DELIVER_BEFORE)),
            ("X_ON_DUPLICATE", Some(ON_DUPLICATE)),
            ("X-Customer", Some(CUSTOMER)),
            ("x-delay", None),
            ("customer", None),
            ("application", None),
            ("x-delays", None),
            ("traceparent", None),
            ("", None),
        ] {
            assert_eq!(Fields::meant(given), meant, "{given}");
        }
    }
}
