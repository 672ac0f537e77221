//! The lines of an export, one JSON document each: the first identifies it, the last confirms that it is
//! complete. Pure.
//!
//! Version 2. An absent key has its default; an unknown key is refused, so that no data is lost silently. To
//! change the format, raise [`LINES_VERSION`] and keep reading older versions. Version 1 does not name the
//! windows of items: see [`super::former`].

use super::fields::CAUSES;
use super::queue_line::QueueLine;
use super::record::View;
use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidegate_config::terms::BROKER_MAX;
use tidegate_types::event::{Stored, WindowRow, DEAD_LETTERS};
use tidegate_types::{BatchId, ClosedBy, Content, Dead, End, Ended, Identity, Key, Reason};

/// The format's name in the first line.
pub const LINES_FORMAT: &str = "tidegate-store";
/// The version that this program writes; it reads none newer.
pub const LINES_VERSION: u32 = 2;

/// Longest line in bytes: the largest body that a broker carries, as base64 or as text of at most that
/// length, plus properties, which fit into one frame, names and error sentences.
pub const LONGEST_LINE: u64 = BROKER_MAX.div_ceil(3) * 4 + (4 << 20);
/// Longest first line in bytes: a file that is no export is refused before it fills the memory.
pub const LONGEST_FIRST: u64 = 4 << 10;

/// One line of an export.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExportLine {
    /// The first line.
    Store(StoreLine),
    /// State of a queue, such as a pause.
    Queue(QueueLine),
    /// An open window that ends far ahead.
    Window(WindowLine),
    /// A waiting item, or a dead letter on its way.
    Item(Box<ItemLine>),
    /// A remembered id of an ended item.
    Ended(EndedLine),
    /// The last line: the export is complete.
    End(EndLine),
}

/// Identifies the export and its store.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoreLine {
    /// Always [`LINES_FORMAT`] in an export.
    pub format: String,
    /// At most [`LINES_VERSION`] for this program.
    pub version: u32,
    /// Name of the export, 32 random hexadecimal digits, by which people tell two exports of a store apart.
    pub export: String,
    /// Identity of the store, 16 hexadecimal digits.
    pub store: String,
    /// The first arrival number that is certainly unused.
    pub next_number: u64,
    /// The latest time of the daemon's clock, UTC ms.
    pub clock: u64,
    /// Number of items that follow, approximate.
    pub items: u64,
    /// Number of shards whose exports were joined; absent: the export is that of one store. Several may
    /// contain an end of the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,
}

/// An open window, as the store keeps it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WindowLine {
    /// Name of the application.
    pub application: String,
    /// Name of the customer.
    pub customer: String,
    /// Planned end, UTC ms.
    pub end: u64,
    /// Arrival number of its first member; absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Number of members so far.
    pub count: u32,
    /// Sum of their weights, in bytes.
    pub weight: u64,
    /// Most urgent expiry among the members, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<u64>,
}

/// All data of an item that a restart restores, and the parts of it that people want to read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ItemLine {
    /// `waiting`, or `dead` for an item on its way to the dead-letter exchange.
    pub state: String,
    /// Application name; possibly empty for a dead item.
    pub application: String,
    /// Name of the customer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// The producer's id, or the assigned one, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Hash of the producer's id, 32 hexadecimal digits; absent: the producer gave no id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// See [`Stored::fingerprint`], 16 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Its arrival number.
    pub number: u64,
    /// Arrival number of the first member of its window; absent: the item's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// When it is due, UTC ms.
    pub due: u64,
    /// Its due when it was accepted, UTC ms; absent: same as `due`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_due: Option<u64>,
    /// Receipt, UTC ms.
    pub received: u64,
    /// The item has its own time.
    #[serde(default, skip_serializing_if = "is_false")]
    pub own_time: bool,
    /// When it expires, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<u64>,
    /// Same as [`Stored::weight`].
    pub weight: u32,
    /// Cause of the closing of its window; absent: time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_by: Option<String>,
    /// Failed attempts so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Text of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The item may already have been delivered.
    #[serde(default, skip_serializing_if = "is_false")]
    pub outcome_unknown: bool,
    /// Number of times that its consumer sent it back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry: u32,
    /// Reason, for a dead item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Error sentence, for a dead item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When a dead item was due, UTC ms: it waits for `due`. Absent: see [`Stored::letter_due`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_due: Option<u64>,
    /// Properties and headers as stored, in AMQP's encoding, as base64.
    pub properties: String,
    /// The payload may be embedded as JSON.
    #[serde(default, skip_serializing_if = "is_false")]
    pub json: bool,
    /// The payload, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The payload in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// How an item with a remembered id ended.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EndedLine {
    /// Identity as 32 hexadecimal digits.
    pub identity: String,
    /// `sent`, `cancelled`, `cancelled_again` or `dead`.
    pub end: String,
    /// When it ended, UTC ms.
    pub at: u64,
    /// When it was due, UTC ms.
    pub due: u64,
    /// Failed attempts so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Fingerprint as 16 hexadecimal digits.
    pub fingerprint: String,
    /// Name of the customer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// The batch in which it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Reason of a dead item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Error sentence of a dead item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The size of the export.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EndLine {
    /// Number of lines before this one.
    pub lines: u64,
    /// Number of items among them.
    pub items: u64,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn hex(identity: Identity) -> String {
    format!("{:032x}", u128::from_be_bytes(identity.to_bytes()))
}

/// Accepts exactly the digits that an export writes, and no other length.
fn number_of(text: &str, digits: usize, key: &str) -> Result<u128, String> {
    let fits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let read = fits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    read.ok_or_else(|| format!("`{key}` is not {digits} hexadecimal digits"))
}

fn u64_of(text: &str, key: &str) -> Result<u64, String> {
    number_of(text, 16, key).map(|number| number as u64)
}

fn identity_of(text: &str) -> Result<Identity, String> {
    let identity = Identity::from_bytes(number_of(text, 32, "identity")?.to_be_bytes());
    if identity.is_given() {
        Ok(identity)
    } else {
        Err("`identity` is not that of a producer's id".to_owned())
    }
}

fn decoded(text: &str, key: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("`{key}` is not base64: {error}"))
}

fn dead_of(reason: Option<&str>, error: Option<String>) -> Result<Dead, String> {
    let reason = reason.ok_or("`reason` is missing: it is dead")?;
    let known = Reason::ALL.into_iter().find(|known| known.as_str() == reason);
    let reason = known.ok_or_else(|| format!("`reason` is unknown: {reason:?}"))?;
    Ok(Dead { reason, error: error.ok_or("`error` is missing: it is dead")?.into() })
}

impl ExportLine {
    /// Appends the line, and counts it.
    pub(crate) fn put(&self, told: &mut EndLine, out: &mut Vec<u8>) {
        // Lines contain only texts and numbers, so writing cannot fail.
        if serde_json::to_writer(&mut *out, self).is_ok() {
            out.push(b'\n');
            told.lines += 1;
            told.items += u64::from(matches!(self, ExportLine::Item(_)));
        }
    }
}

impl StoreLine {
    /// Checks the line, and reads the identity of the store.
    ///
    /// # Errors
    ///
    /// It is not an export, a newer version has written it, or a key is invalid.
    pub fn identity(&self) -> Result<u64, String> {
        if self.format != LINES_FORMAT {
            return Err(format!("`format` is {:?}, and not {LINES_FORMAT:?}", self.format));
        }
        if !(1..=LINES_VERSION).contains(&self.version) {
            let found = self.version;
            return Err(format!("`version` is {found}, and this program reads {LINES_VERSION} at most"));
        }
        let store = u64_of(&self.store, "store")?;
        if store == 0 {
            return Err("`store` is 0, which is no store's identity".to_owned());
        }
        if self.next_number > u64::from(u32::MAX) << 30 {
            return Err("`next_number` is larger than any number that a store assigns".to_owned());
        }
        number_of(&self.export, 32, "export")?;
        Ok(store)
    }
}

impl WindowLine {
    /// The line of a window's row.
    pub fn of(row: &WindowRow) -> Self {
        let WindowRow { application, customer, end, window, count, weight, expiry } = row;
        WindowLine {
            application: application.to_string(),
            customer: customer.to_string(),
            end: *end,
            window: Some(*window),
            count: *count,
            weight: *weight,
            expiry: *expiry,
        }
    }

    /// The row of this line.
    ///
    /// # Errors
    ///
    /// The line has no number.
    pub fn row(&self) -> Result<WindowRow, String> {
        Ok(WindowRow {
            window: self.window.ok_or("`window` is missing")?,
            application: (*self.application).into(),
            customer: (*self.customer).into(),
            end: self.end,
            count: self.count,
            weight: self.weight,
            expiry: self.expiry,
        })
    }
}

impl ItemLine {
    /// Name of the queue that contains the item.
    pub(crate) fn queue(&self) -> &str {
        if self.state == "dead" {
            DEAD_LETTERS
        } else {
            &self.application
        }
    }

    /// The stored properties and headers.
    ///
    /// # Errors
    ///
    /// They are not base64.
    pub(crate) fn stored_properties(&self) -> Result<Vec<u8>, String> {
        decoded(&self.properties, "properties")
    }

    /// Makes the id one that the producer gave. No request equals the item then.
    pub(crate) fn give(&mut self, identity: Identity, properties: &[u8]) {
        self.identity = Some(hex(identity));
        self.fingerprint = Some(format!("{:016x}", 0));
        self.properties = STANDARD.encode(properties);
    }

    /// Whether the item waits for the end of a window.
    pub fn is_windowed(&self) -> bool {
        self.state == "waiting" && self.customer.is_some() && !self.own_time
    }

    /// The line of a record, with its actual due. `id`: for people to read.
    pub fn of(view: &View<'_>, id: String) -> Self {
        let cause = view.closed_by;
        let due = if view.dead.is_some() { view.key.due } else { view.due };
        let known = Stored::letter_due(view.key, view.accepted_due, view.own_time);
        let (body, body_base64) = match tidegate_types::size::readable(view.body) {
            Some(text) => (Some(text.to_owned()), None),
            None => (None, Some(STANDARD.encode(view.body))),
        };
        ItemLine {
            state: if view.dead.is_some() { "dead" } else { "waiting" }.to_owned(),
            application: view.application.to_owned(),
            customer: view.customer.map(str::to_owned),
            id: Some(id),
            identity: view.given.map(hex),
            fingerprint: view.given.map(|_| format!("{:016x}", view.fingerprint)),
            number: view.key.seq,
            window: Some(view.key.window).filter(|window| *window != view.key.seq),
            due,
            accepted_due: Some(view.accepted_due).filter(|accepted| *accepted != due),
            received: view.received,
            own_time: view.own_time,
            expiry: view.expiry,
            weight: view.weight,
            closed_by: (cause != ClosedBy::default()).then(|| cause.as_str().to_owned()),
            attempts: view.attempts,
            last_error: view.last_error.map(str::to_owned),
            outcome_unknown: view.outcome_unknown,
            retry: view.retry,
            reason: view.dead.map(|(reason, _)| reason.as_str().to_owned()),
            error: view.dead.map(|(_, error)| error.to_owned()),
            was_due: view.dead.map(|_| view.due).filter(|was| *was != known),
            properties: STANDARD.encode(view.properties),
            json: view.json,
            body,
            body_base64,
        }
    }

    /// The item of this line, with its content.
    ///
    /// # Errors
    ///
    /// A text that names the missing or invalid key.
    pub fn stored(self) -> Result<Stored, String> {
        let body = match (self.body, self.body_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => decoded(&text, "body_base64")?,
            (Some(_), Some(_)) => return Err("`body` and `body_base64` are both present".to_owned()),
            (None, None) => return Err("`body` is missing, and so is `body_base64`".to_owned()),
        };
        let dead = match self.state.as_str() {
            "waiting" => None,
            "dead" => Some(Arc::new(dead_of(self.reason.as_deref(), self.error)?)),
            other => return Err(format!("`state` is neither waiting nor dead: {other:?}")),
        };
        if self.application.is_empty() && dead.is_none() {
            return Err("`application` is empty".to_owned());
        }
        let closed_by = match self.closed_by.as_deref() {
            None => ClosedBy::default(),
            Some(text) => {
                let known = CAUSES.into_iter().find(|cause| cause.as_str() == text);
                known.ok_or_else(|| format!("`closed_by` is unknown: {text:?}"))?
            }
        };
        let given = self.identity.as_deref().map(identity_of).transpose()?;
        let fingerprint = match (&self.fingerprint, given) {
            (Some(text), Some(_)) => u64_of(text, "fingerprint")?,
            (None, _) => 0,
            (Some(_), None) => return Err("`fingerprint` is present without `identity`".to_owned()),
        };
        let content = Content { properties: decoded(&self.properties, "properties")?, body, json: self.json };
        let window = self.window.unwrap_or(self.number);
        let behind = self.number.checked_sub(window).filter(|_| window > 0);
        if behind.is_none_or(|behind| u32::try_from(behind).is_err()) {
            return Err("`number` is 0, or `window` is not a number shortly before it".to_owned());
        }
        let key = Key { due: self.due, window, seq: self.number };
        let accepted_due = self.accepted_due.unwrap_or(self.due);
        let due = match (&dead, self.was_due) {
            (None, None) => self.due,
            (None, Some(_)) => return Err("`was_due` is present, and it is not dead".to_owned()),
            (Some(_), was) => was.unwrap_or(Stored::letter_due(key, accepted_due, self.own_time)),
        };
        Ok(Stored {
            key,
            due,
            accepted_due,
            application: self.application.into(),
            customer: self.customer.map(Arc::from),
            given,
            fingerprint,
            received: self.received,
            own_time: self.own_time,
            expiry: self.expiry,
            weight: self.weight,
            closed_by,
            attempts: self.attempts,
            last_error: self.last_error.map(Arc::from),
            outcome_unknown: self.outcome_unknown,
            retry: self.retry,
            dead,
            content: Some(Arc::new(content)),
        })
    }
}

impl EndedLine {
    /// The line of a remembered end.
    pub fn of(identity: Identity, ended: &Ended) -> Self {
        let (end, batch, dead) = match &ended.end {
            End::Sent(batch) => ("sent", Some(batch.to_string()), None),
            End::Cancelled => ("cancelled", None, None),
            End::CancelledAgain => ("cancelled_again", None, None),
            End::Dead(dead) => ("dead", None, Some(dead)),
        };
        EndedLine {
            identity: hex(identity),
            end: end.to_owned(),
            at: ended.at,
            due: ended.due,
            attempts: ended.attempts,
            fingerprint: format!("{:016x}", ended.fingerprint),
            customer: ended.customer.as_deref().map(str::to_owned),
            batch,
            reason: dead.map(|dead| dead.reason.as_str().to_owned()),
            error: dead.map(|dead| dead.error.to_string()),
        }
    }

    /// The remembered end of this line, and the identity of its item.
    ///
    /// # Errors
    ///
    /// A text that names the missing or invalid key.
    pub fn ended(self) -> Result<(Identity, Ended), String> {
        let end = match self.end.as_str() {
            "sent" => {
                let batch = number_of(self.batch.as_deref().unwrap_or_default(), 32, "batch")?;
                End::Sent(BatchId(batch.to_be_bytes()))
            }
            "cancelled" => End::Cancelled,
            "cancelled_again" => End::CancelledAgain,
            "dead" => End::Dead(Arc::new(dead_of(self.reason.as_deref(), self.error)?)),
            other => return Err(format!("`end` is unknown: {other:?}")),
        };
        let ended = Ended {
            end,
            at: self.at,
            due: self.due,
            attempts: self.attempts,
            fingerprint: u64_of(&self.fingerprint, "fingerprint")?,
            customer: self.customer.map(Arc::from),
        };
        Ok((identity_of(&self.identity)?, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    prop_compose! {
        fn item()(
            (due, seq, accepted_due, received) in any::<(u64, u64, u64, u64)>(),
            was_due in any::<u64>(),
            (customer, last_error) in (option::of(".{1,10}"), option::of(".{0,10}")),
            given in option::of((any::<[u8; 16]>(), any::<u64>())),
            (own_time, outcome_unknown, json) in any::<(bool, bool, bool)>(),
            (expiry, weight) in (option::of(any::<u64>()), any::<u32>()),
            (attempts, retry) in any::<(u32, u32)>(),
            cause in 0..CAUSES.len(),
            dead in option::of((0..Reason::ALL.len(), ".{0,10}")),
            (properties, body) in (vec(any::<u8>(), 0..40), prop_oneof![
                vec(any::<u8>(), 0..40), ".{0,20}".prop_map(String::into_bytes)
            ]),
        ) -> Stored {
            Stored {
                key: Key::own(due, seq), due: if dead.is_some() { was_due } else { due },
                accepted_due, received, own_time, expiry, weight, attempts,
                outcome_unknown, retry, application: "shop".into(), customer: customer.map(Arc::from),
                given: given.map(|(hash, _)| Identity::given(hash)),
                fingerprint: given.map_or(0, |(_, fingerprint)| fingerprint),
                closed_by: CAUSES[cause], last_error: last_error.map(Arc::from),
                dead: dead.map(|(reason, error)| {
                    Arc::new(Dead { reason: Reason::ALL[reason], error: error.into() })
                }),
                content: Some(Arc::new(Content { properties, body, json })),
            }
        }
    }

    fn line_of(item: &Stored) -> ItemLine {
        ItemLine::of(&View::of(item, item.content.as_ref().unwrap()), "17".to_owned())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn an_item_comes_back_whole(item in item()) {
            let line = ExportLine::Item(Box::new(line_of(&item)));
            let text = serde_json::to_string(&line).unwrap();
            prop_assert!(!text.contains('\n'));
            let ExportLine::Item(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
            prop_assert_eq!(back.stored().unwrap(), item);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,100}") {
            let _ = serde_json::from_str::<ExportLine>(&text);
        }
    }

    #[test]
    fn a_member_of_a_closed_window_is_due_when_it_closed() {
        let content = Some(Arc::new(Content::default()));
        let flushed = Stored {
            due: 50,
            closed_by: ClosedBy::Flush,
            ..tidegate_fake_store::blank("shop", Key::own(90, 3))
        };
        let back = line_of(&Stored { content, ..flushed }).stored().unwrap();
        assert_eq!((back.key, back.due, back.accepted_due), (Key::own(50, 3), 50, 90));
        assert_eq!(back.closed_by, ClosedBy::Flush);
    }

    #[test]
    fn how_an_item_ended_comes_back() {
        let dead = Dead { reason: Reason::Refused, error: "no".into() };
        for end in
            [End::Sent(BatchId([7; 16])), End::Cancelled, End::CancelledAgain, End::Dead(Arc::new(dead))]
        {
            let ended = Ended { end, at: 1, due: 2, attempts: 3, fingerprint: 4, customer: Some("c".into()) };
            let identity = Identity::given([9; 16]);
            let text = serde_json::to_string(&ExportLine::Ended(EndedLine::of(identity, &ended))).unwrap();
            let ExportLine::Ended(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
            assert_eq!(back.ended().unwrap(), (identity, ended));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = line_of(&Stored {
            given: Some(Identity::given([1; 16])),
            content: Some(Arc::new(Content::default())),
            ..tidegate_fake_store::blank("shop", Key::own(1, 2))
        });
        let wrong = |change: fn(&mut ItemLine)| {
            let mut line = good.clone();
            change(&mut line);
            line.stored().unwrap_err()
        };
        assert_eq!(wrong(|line| line.state = "sent".into()), "`state` is neither waiting nor dead: \"sent\"");
        assert_eq!(wrong(|line| line.state = "dead".into()), "`reason` is missing: it is dead");
        assert_eq!(wrong(|line| line.application.clear()), "`application` is empty");
        assert_eq!(wrong(|line| line.body = None), "`body` is missing, and so is `body_base64`");
        assert_eq!(
            wrong(|line| line.body_base64 = Some(String::new())),
            "`body` and `body_base64` are both present"
        );
        assert!(wrong(|line| line.properties = "?".into()).starts_with("`properties` is not base64"));
        assert_eq!(wrong(|line| line.closed_by = Some("me".into())), "`closed_by` is unknown: \"me\"");
        let short = "`identity` is not 32 hexadecimal digits";
        assert_eq!(wrong(|line| line.identity = Some("12".into())), short);
        assert_eq!(wrong(|line| line.identity = None), "`fingerprint` is present without `identity`");
        let assigned = wrong(|line| line.identity = Some("0".repeat(32)));
        assert_eq!(assigned, "`identity` is not that of a producer's id");
        let unknown = r#"{"kind":"queue","application":"a","paused":true,"colour":1}"#;
        let error = serde_json::from_str::<ExportLine>(unknown).unwrap_err().to_string();
        assert!(error.contains("colour"), "{error}");
        let first = StoreLine {
            format: LINES_FORMAT.to_owned(),
            version: 3,
            export: "0".repeat(32),
            store: "0".repeat(15) + "1",
            next_number: 1,
            clock: 2,
            items: 3,
            shards: None,
        };
        assert!(first.identity().unwrap_err().contains("`version` is 3"));
        for version in [1, 2] {
            assert_eq!(StoreLine { version, ..first.clone() }.identity(), Ok(1));
        }
        let error = StoreLine { version: 2, next_number: u64::MAX, ..first }.identity().unwrap_err();
        assert!(error.starts_with("`next_number`"), "{error}");
    }
}
