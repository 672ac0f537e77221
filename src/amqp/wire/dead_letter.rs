//! A dead letter as it is read from its queue, and as the request that it becomes when it is sent back.

use super::copied::push_value;
use super::fields::{self, DEATHS, RETRIED};
use super::json::media_type;
use super::message::ENVELOPE;
use super::properties::{put_headers, set_number, set_text, Basic, RawValue};
use super::sharing;
use super::time;
use crate::dead_letters::{
    Letter, LetterKey, NewTime, RetryTerms, WholeLetter, MOST_SHOWN_BODY, MOST_SHOWN_TEXT,
};
use base64::prelude::{Engine as _, BASE64_STANDARD};
use lapin::types::{AMQPValue, FieldTable};
use lapin::BasicProperties;
use serde_json::{json, Map, Value};
use std::borrow::Cow;
use tidegate_config::rfc3339::Rounding;
use tidegate_config::terms::{batch_header, DEAD_PREFIX, NEVER_COPIED};
use tidegate_types::size;

/// Prefixes of RabbitMQ's headers about dead-lettering.
pub(crate) const BROKER_DEATHS: [&str; 3] = [DEATHS, "x-first-death-", "x-last-death-"];

/// A message of the dead-letter queue.
#[derive(Clone, Copy, Debug)]
pub struct RawLetter<'a> {
    /// Routing key it was published with.
    pub routing_key: &'a str,
    /// Properties, with headers.
    pub properties: &'a BasicProperties,
    /// Payload, as published.
    pub body: &'a [u8],
}

impl RawLetter<'_> {
    /// Reads a summary; `whole`: with all properties and headers, and the body.
    pub fn read(&self, whole: bool) -> Letter {
        let basic = Basic::of(self.properties);
        // Headers nested too deep cannot be walked; without them the message still has a key.
        let stored = basic.write(|out| put_headers(out, self.properties, |_, _| true));
        let stored = stored.or_else(|_| basic.write(|_| Ok::<(), ()>(()))).unwrap_or_default();
        let text = |name: &str| self.text(name).filter(|text| !text.is_empty()).map(|text| shown(&text));
        let application = text(fields::APPLICATION).unwrap_or_else(|| shown(&self.routing_key()));
        Letter {
            key: self.key(&stored),
            reason: text("x-tidegate-reason").unwrap_or_else(|| self.broker_reason()),
            error: text("x-tidegate-error"),
            application,
            customer: text(fields::CUSTOMER),
            id: basic.message_id.map(Into::into),
            attempts: self.number("x-tidegate-attempts"),
            due: self.number(batch_header::DUE),
            content_type: basic.content_type.map(Into::into),
            bytes: self.body.len(),
            whole: whole.then(|| self.whole(&basic, &stored)),
        }
    }

    /// The routing key that its producer published it with: if it was forwarded, that of the original.
    pub fn routing_key(&self) -> Cow<'_, str> {
        match sharing::origin(self.properties) {
            Some((exchange, key)) => Cow::Owned(if exchange.is_empty() { String::new() } else { key }),
            None => Cow::Borrowed(self.routing_key),
        }
    }

    /// How often it was returned to its queue; 0 if the queue does not count.
    pub fn returns(&self) -> u64 {
        self.number("x-delivery-count").unwrap_or(0)
    }

    fn key(&self, stored: &[u8]) -> LetterKey {
        let mut hasher = blake3::Hasher::new();
        for part in [self.routing_key.as_bytes(), stored, self.body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        LetterKey::of(&hasher.finalize().to_hex())
    }

    fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }

    /// A header that is text or a number, as text.
    fn text(&self, name: &str) -> Option<String> {
        fields::text(name, self.header(name), usize::MAX).ok().flatten().map(|text| text.into_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    fn broker_reason(&self) -> Box<str> {
        let Some(AMQPValue::FieldArray(deaths)) = self.header(DEATHS) else { return "unknown".into() };
        let Some(AMQPValue::FieldTable(death)) = deaths.as_slice().first() else { return "unknown".into() };
        let word = death.inner().get("reason");
        match fields::text("reason", word, usize::MAX) {
            Ok(Some(word)) => shown(&format!("broker:{word}")),
            Ok(None) | Err(_) => "unknown".into(),
        }
    }

    fn whole(&self, basic: &Basic<'_>, stored: &[u8]) -> WholeLetter {
        let table = Basic::parse(stored).map_or(&[][..], |(_, table)| table);
        let mut whole = WholeLetter {
            properties: properties(basic),
            headers: json_of(table.get(4..).unwrap_or_default()),
            ..WholeLetter::default()
        };
        if self.body.len() > MOST_SHOWN_BODY {
            whole.body_left_out = true;
        } else {
            match size::readable(self.body) {
                Some(text) => whole.body = Some(text.to_owned()),
                None => whole.body_base64 = Some(BASE64_STANDARD.encode(self.body)),
            }
        }
        whole
    }

    /// Its properties as a request that is sent back at `now` (UTC ms). `mark` must differ each time. Removed
    /// are the headers that tidegate and the broker added, an old own time, and an expiry that can no longer
    /// be met.
    ///
    /// `None`: it is an envelope, whose times are in its body, and `terms` ask for others.
    pub fn sent_back(&self, terms: &RetryTerms, now: u64, mark: &str) -> Option<BasicProperties> {
        let basic = Basic::of(self.properties);
        let envelope = basic.content_type.is_some_and(|text| media_type(text).eq_ignore_ascii_case(ENVELOPE));
        if envelope && *terms != RetryTerms::default() {
            return None;
        }
        let due = match terms.time {
            NewTime::Now => now,
            NewTime::At(at) => at.max(now),
            NewTime::After(ms) => now.saturating_add(ms),
        };
        let mut headers = FieldTable::default();
        for (name, value) in self.properties.headers().iter().flatten() {
            if self.stays(name.as_str(), value, due, terms.deliver_before) {
                headers.insert(name.clone(), value.clone());
            }
        }
        let time = match terms.time {
            NewTime::Now => None,
            NewTime::At(at) => Some((fields::DELIVER_AT, at)),
            // Not as a delay, which might count from when the request was made.
            NewTime::After(_) => Some((fields::DELIVER_AT, due)),
        };
        let expiry = terms.deliver_before.map(|before| (fields::DELIVER_BEFORE, before));
        for (name, ms) in time.into_iter().chain(expiry) {
            set_number(&mut headers, name, ms);
        }
        set_text(&mut headers, RETRIED, mark);
        Some(basic.to_amqp(headers))
    }

    fn stays(&self, name: &str, value: &AMQPValue, due: u64, new_expiry: Option<u64>) -> bool {
        let times =
            [fields::DELIVER_AT, fields::DELAY, fields::OPT_DELIVERY_TIME, fields::OPT_DELIVERY_DELAY];
        if name == fields::DELIVER_BEFORE {
            let old = time::of_header(value, Rounding::Down)
                .ok()
                .flatten()
                .and_then(|given| time::moment(given).ok());
            // An unreadable one is why it was dead-lettered.
            return new_expiry.is_none() && old.is_none_or(|old| old > due);
        }
        let added = [batch_header::DUE, batch_header::ATTEMPT, batch_header::BATCH, batch_header::RETRY];
        !times.contains(&name)
            && !added.contains(&name)
            && !NEVER_COPIED.contains(&name)
            && !name.starts_with(DEAD_PREFIX)
            && !BROKER_DEATHS.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// As much of a text as a summary shows.
fn shown(text: &str) -> Box<str> {
    if text.len() <= MOST_SHOWN_TEXT {
        return text.into();
    }
    let end = (0..=MOST_SHOWN_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end]).into()
}

fn properties(basic: &Basic<'_>) -> Map<String, Value> {
    let all = [
        ("content_type", basic.content_type.map(|text| json!(text))),
        ("content_encoding", basic.content_encoding.map(|text| json!(text))),
        ("priority", basic.priority.map(|number| json!(number))),
        ("correlation_id", basic.correlation_id.map(|text| json!(text))),
        ("reply_to", basic.reply_to.map(|text| json!(text))),
        ("message_id", basic.message_id.map(|text| json!(text))),
        ("timestamp", basic.timestamp.map(|seconds| json!(seconds))),
        ("type", basic.kind.map(|text| json!(text))),
        ("app_id", basic.app_id.map(|text| json!(text))),
        ("cluster_id", basic.cluster_id.map(|text| json!(text))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The entries of a header table, in the forms of a batch's entries.
fn json_of(table: &[u8]) -> Value {
    let mut out = Vec::new();
    push_value(&mut out, RawValue { kind: b'F', bytes: table }, 0);
    serde_json::from_slice(&out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::FieldArray;

    const NOW: u64 = 1_800_000_000_000;

    fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert((*name).into(), value.clone());
        }
        table
    }

    fn text(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    fn properties(entries: &[(&str, AMQPValue)]) -> BasicProperties {
        BasicProperties::default().with_message_id("i-1".into()).with_headers(table(entries))
    }

    fn letter(properties: &BasicProperties) -> RawLetter<'_> {
        RawLetter { routing_key: "shop", properties, body: b"{}" }
    }

    fn names(properties: &BasicProperties) -> Vec<&str> {
        properties.headers().iter().flatten().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_letter_says_why_and_whose() {
        let sent = properties(&[
            ("x-tidegate-reason", text("attempts")),
            ("x-tidegate-error", text("given up")),
            ("x-tidegate-attempts", AMQPValue::LongLongInt(3)),
            ("x-application", text("mail")),
            ("x-due", AMQPValue::LongLongInt(7)),
            ("lang", text("en")),
        ]);
        let read = letter(&sent).read(true);
        assert_eq!((&*read.reason, read.error.as_deref()), ("attempts", Some("given up")));
        assert_eq!((&*read.application, read.id.as_deref()), ("mail", Some("i-1")));
        assert_eq!((read.attempts, read.due, read.bytes), (Some(3), Some(7), 2));
        let whole = read.whole.unwrap();
        assert_eq!(whole.headers["lang"], "en");
        assert_eq!(whole.properties["message_id"], "i-1");
        assert_eq!(whole.body.as_deref(), Some("{}"));
        assert_eq!(LetterKey::parse(read.key.as_str()), Some(read.key));
    }

    #[test]
    fn what_the_broker_moved_says_so() {
        let death = AMQPValue::FieldTable(table(&[("reason", text("delivery_limit"))]));
        let sent = properties(&[("x-death", AMQPValue::FieldArray(FieldArray::from(vec![death])))]);
        let read = letter(&sent).read(false);
        assert_eq!((&*read.reason, &*read.application), ("broker:delivery_limit", "shop"));
        assert_eq!(&*letter(&BasicProperties::default()).read(false).reason, "unknown");
    }

    /// Any publisher can make such dead letters.
    #[test]
    fn what_is_shown_is_bounded_and_what_is_cut_is_no_name_that_can_be_meant() {
        let long = "ä".repeat(60_000);
        let sent = properties(&[
            ("x-tidegate-reason", text(&long)),
            ("x-tidegate-error", text(&long)),
            ("x-application", text(&long)),
            ("x-customer", text(&long)),
        ]);
        let read = letter(&sent).read(false);
        let cut = format!("{}…", "ä".repeat(512));
        for shown in [&*read.reason, &*read.application, read.error.as_deref().unwrap()] {
            assert_eq!(shown, cut);
        }
        let body = vec![1; 3_000];
        let unread = RawLetter { body: &body, ..letter(&sent) };
        let whole = unread.read(true).whole.unwrap();
        assert_eq!((whole.body, whole.body_base64.map(|text| text.len())), (None, Some(4_000)));
    }

    /// A look at a dead letter changes only its count of deliveries.
    #[test]
    fn a_key_outlives_looks_and_tells_letters_apart() {
        let key = |properties: &BasicProperties| letter(properties).read(false).key;
        let sent = properties(&[("a", text("1"))]);
        let looked_at = properties(&[("a", text("1")), ("x-delivery-count", AMQPValue::LongLongInt(2))]);
        assert_eq!(key(&sent), key(&looked_at));
        assert_eq!(letter(&looked_at).returns(), 2);
        assert_ne!(key(&sent), key(&properties(&[("a", text("2"))])));
        assert_ne!(key(&sent), key(&sent.clone().with_message_id("i-2".into())));
    }

    #[test]
    fn what_was_added_is_taken_off_and_the_rest_stays() {
        let sent = properties(&[
            ("x-tidegate-reason", text("attempts")),
            ("x-tidegate-retried", text("before")),
            ("x-due", AMQPValue::LongLongInt(7)),
            ("x-attempt", AMQPValue::LongLongInt(1)),
            ("x-batch", text("ab")),
            ("x-death", AMQPValue::FieldArray(FieldArray::default())),
            ("x-first-death-queue", text("q")),
            ("x-delivery-count", AMQPValue::LongLongInt(2)),
            ("x-delay", AMQPValue::LongLongInt(9)),
            ("x-opt-delivery-time", AMQPValue::LongLongInt(9)),
            ("x-application", text("shop")),
            ("x-customer", text("anna")),
            ("x-on-duplicate", text("replace")),
            ("lang", text("en")),
        ])
        .with_expiration("5".into())
        .with_user_id("somebody".into());
        let back = letter(&sent).sent_back(&RetryTerms::default(), NOW, "m").unwrap();
        let kept = ["lang", "x-application", "x-customer", "x-on-duplicate", RETRIED];
        assert_eq!(names(&back), kept);
        assert_eq!((back.expiration(), back.user_id(), *back.delivery_mode()), (&None, &None, Some(2)));
        let terms = RetryTerms { time: NewTime::After(60), deliver_before: None };
        let back = letter(&sent).sent_back(&terms, NOW, "m").unwrap();
        assert_eq!(
            back.headers().as_ref().unwrap().inner()["x-deliver-at"],
            AMQPValue::LongLongInt(NOW as i64 + 60)
        );
        let terms = RetryTerms { time: NewTime::At(NOW + 1), deliver_before: Some(NOW + 2) };
        let back = letter(&sent).sent_back(&terms, NOW, "m").unwrap();
        let headers = back.headers().as_ref().unwrap().inner();
        assert_eq!(headers["x-deliver-at"], AMQPValue::LongLongInt(NOW as i64 + 1));
        assert_eq!(headers["x-deliver-before"], AMQPValue::LongLongInt(NOW as i64 + 2));
    }

    #[test]
    fn an_expiry_stays_where_it_can_be_met() {
        let with = |before: AMQPValue| properties(&[("x-deliver-before", before)]);
        let stays = |before: AMQPValue, time: NewTime| {
            let sent = with(before);
            let terms = RetryTerms { time, deliver_before: None };
            names(&letter(&sent).sent_back(&terms, NOW, "m").unwrap()).contains(&"x-deliver-before")
        };
        let at = |ms: u64| AMQPValue::LongLongInt(ms as i64);
        assert!(!stays(at(NOW - 1), NewTime::Now));
        assert!(stays(at(NOW + 1_000), NewTime::Now));
        assert!(!stays(at(NOW + 1_000), NewTime::After(1_000)));
        assert!(!stays(at(NOW + 1_000), NewTime::At(NOW + 2_000)));
        assert!(stays(text("soon"), NewTime::Now), "what it died of is not hidden");
    }

    #[test]
    fn an_envelope_goes_back_as_it_is_or_stays() {
        let sent = properties(&[]).with_content_type("application/vnd.tidegate+json".into());
        assert!(letter(&sent).sent_back(&RetryTerms::default(), NOW, "m").is_some());
        let terms = RetryTerms { time: NewTime::After(1), deliver_before: None };
        assert!(letter(&sent).sent_back(&terms, NOW, "m").is_none());
    }
}
